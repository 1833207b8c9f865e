"""A product whose clusters take equal shares of the steps of K of all tiles ("stream-K": Osama et al., 2301.03598).

    tiles              | 0           | 1           | 2           |      steps of K, one tile after the other
    clusters           | 0       | 1       | 2       | 3       |       an equal share each
                         ======= =   ===== ===   === ===== =======
    cluster 1            part of tile 1, then the end of tile 0: what cluster 0 has of it is there by then

A cluster goes through its share from the end: first the beginning of a tile, whose sums it leaves in memory for
whoever has that tile's last step, then whole tiles, then the end of one, to which it adds what the clusters before it
have left, in their order: so results repeat. It waits for clusters of lower numbers alone, which the hardware starts no
later; these leave their part first. What is more than two waves of tiles is multiplied tile by tile, after that.

    flags     one for each CTA, zero at launch: its part is there
    parts     one tile of fp32 for each CTA, as its threads hold it: quads of registers, thread by thread
"""

from __future__ import annotations

from functools import partial as bound
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from ...common.control import loop, until, when
from ...common.math import both, select
from .wgmma import WgmmaProduct

QUAD = 4  # of registers, that travel together
BLOCK = 16  # quads that are read before they are added
THERE = 5  # named barrier of those that multiply


class StreamK(WgmmaProduct):
    """A Point with `stream_k`: its tensors are A, B, C, exponents, the epilogue's operands, flags and parts."""

    def _rounds(self, tiles: Any, steps: Any) -> tuple[Any, Any, Any]:
        """Of a cluster: its items are counted from 0."""
        self.clusters = cute.arch.grid_dim()[0] // self.point.cluster
        self.cluster = cute.arch.block_idx()[0] // self.point.cluster
        self.steps = steps
        over = tiles % self.clusters
        self.shared = select(over == 0, Int32(0), select(tiles > self.clusters, over + self.clusters, tiles))
        whole = self.shared * steps
        self.share = cute.ceil_div(whole, self.clusters)
        self.begin = cutlass.min(self.cluster * self.share, whole)
        self.end = cutlass.min(self.begin + self.share, whole)
        self.last = (self.end - 1) // steps
        self.mine = select(self.end > self.begin, self.last - self.begin // steps + 1, Int32(0))
        return Int32(0), Int32(1), self.mine + (tiles - self.shared) // self.clusters

    def _steps(self, turn: Any, rows: Any, columns: Any, splits: Any, each: Any, steps: Any) -> tuple[Any, ...]:
        """(row, column, layer) of an item's tile, and the first and the last of its steps of K."""
        of_share = turn < self.mine
        tile = self.last - turn
        first = cutlass.max(self.begin - tile * steps, Int32(0))
        end = cutlass.min(self.end - tile * steps, steps)
        tile = select(of_share, tile, self.shared + self.cluster + (turn - self.mine) * self.clusters)
        return *self._place(tile, rows, columns), select(of_share, first, Int32(0)), select(of_share, end, steps)

    def _finish(self, sums: list[Any], places: Any, c: Any, more: list[Any], *, span: Any, **rest: Any) -> None:
        """Write a tile, or leave a part of it."""
        *others, flags, parts = more
        begin, end = span
        whole = end == self.steps
        rank = cute.arch.block_idx()[0] % self.point.cluster
        when(end < self.steps, bound(self._leave, sums, flags, parts))
        when(both(whole, begin > 0), bound(self._collect, sums, flags, parts, rank))
        when(whole, lambda: super(StreamK, self)._finish(sums, places, c, others, span=span, **rest))

    def _part(self, parts: Any, cta: Any, count: int) -> Any:
        """Where this thread's registers lie: quads, `count` of them, a tile's threads side by side."""
        threads = 128 * self.point.groups
        thread = cute.arch.thread_idx()[0] - 128
        start = parts.iterator + (cta * (count * threads * QUAD) + thread * QUAD)
        return cute.make_tensor(start.align(4 * QUAD), cute.make_layout((QUAD, count), stride=(1, threads * QUAD)))

    def _leave(self, sums: list[Any], flags: Any, parts: Any) -> None:
        cta = cute.arch.block_idx()[0]
        each = cute.size(sums[0]) // QUAD
        mine = self._part(parts, cta, each * len(sums))
        for i, total in enumerate(sums):
            for q in range(each):
                held = cute.make_rmem_tensor((QUAD,), Float32)
                for e in range(QUAD):
                    held[e] = total[q * QUAD + e]
                cute.autovec_copy(held, mine[(None, i * each + q)])
        cute.arch.fence_acq_rel_gpu()
        cute.arch.barrier(barrier_id=THERE, number_of_threads=128 * self.point.groups)
        first = cute.arch.thread_idx()[0] == 128
        when(first, lambda: cute.arch.store(flags.iterator + cta, Int32(1), sem="release", scope="gpu"))

    def _collect(self, sums: list[Any], flags: Any, parts: Any, rank: Any) -> None:
        """Add what the clusters before this one have of its tile."""
        each = cute.size(sums[0]) // QUAD

        def take(cluster: Any) -> None:
            cta = cluster * self.point.cluster + rank
            flag = flags.iterator + cta
            until(lambda: Int32(1) - cute.arch.load(flag, Int32, sem="acquire", scope="gpu"))
            theirs = self._part(parts, cta, each * len(sums))
            for i, total in enumerate(sums):
                for block in range(0, each, BLOCK):
                    held = [cute.make_rmem_tensor((QUAD,), Float32) for _ in range(min(BLOCK, each - block))]
                    for q, quad in enumerate(held):
                        cute.autovec_copy(theirs[(None, i * each + block + q)], quad)
                    for q, quad in enumerate(held):
                        for e in range(QUAD):
                            at = (block + q) * QUAD + e
                            total[at] = total[at] + quad[e]

        loop(self.begin // self.steps * self.steps // self.share, self.cluster, take)
