"""A product that splits its fp32 right operand itself, in warps that else idle, ahead of those that multiply (sm_90a).

    A is split before; W is (N, K, 1) fp32, K contiguous; B, its planes, is (N, K, 2) fp16, written and read in here;
    exponents of W are (N, chunks) int32, chunks of CHUNK along K; counters, zeros at first, are
    1 + column tiles x chunks int32: items that were taken, then what is ready of each

    warp 0 of warpgroup 0      as `product`; before the first step of a chunk it waits until B's tile of it is ready
    warps 1 .. 3               take items (GROUP rows of one chunk) in the order in which they will be needed: read,
                               find exponents, split, write to B, which is in L2 until it is read; count it as ready
    warpgroups 1, 2            as `product`; at a chunk of which exponents have changed they lower their sums

A pass of its own over W reads it and writes as much, before anything is multiplied; here that takes no time but for
the first chunk's. Order: columns of tiles that are made at a time, chunk by chunk, so no more than the first chunk of
them has to be there to begin.

    items      0 1 2 ..           chunk 0 of the columns that come first, chunk 1 of them, ..; then of the next

A chunk's exponent is the least of what its row's largest elements asked for so far, in steps of BINADES: that places
the largest in [2^7, 2^15), and seldom changes. So sums never grow too large: what is added is in their exponent.

Whoever runs takes the next item, and waits at most for items that were taken before: no CTA needs another one to be on
the device. What warps write is told by a release at the GPU's scope, and read by TMA after an acquire and a fence
between both ways to memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from .. import math as m
from ..control import drawn, loop, until, when
from .finish import power_of_two
from .pair import QUAD, Scale, Seen, exponent_of, highest, split_quad
from .plan import DEPTH, WOVEN_CHUNK
from .product import RESIDUAL_SHIFT, Product

CHUNK = WOVEN_CHUNK
GROUP = 8  # rows of an item
TOGETHER = 4  # rows whose elements are in registers at a time: what is waited for is waited for once
BINADES = 8  # of which exponents are multiples
EMPTY = 160  # no row has a larger exponent, rounded down so
CHANGED = 1 << 16  # of a counter: so many items of other exponents than the chunk before
LINE = 32  # elements of a line of L2


class Woven(Product):
    """A Point with `woven`. Its tensors are A, B, C, the exponents of A and of W, operands, W, the counters."""

    def __call__(
        self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any
    ) -> None:  # fmt: skip
        """Emit the launch."""
        super().__call__((*tensors, tensors[1]), clusters, splits, chunk, stream)

    def _apart(self, more: list[Any], shared: Any) -> list[Any]:
        of_a, self.exponents, *operands, self.w, self.counters, self.planes = more
        self.chunks = cute.size(self.exponents, mode=[1])
        self.marks = shared.allocate_tensor(Int32, cute.make_layout((2 * self.point.depth_stages,)))
        self.groups_of_tile = self.point.tile_n * self.point.cluster_n // GROUP
        self.all_groups = cute.ceil_div(cute.size(self.w, mode=[0]), GROUP)
        return [of_a, cute.domain_offset((0, self.chunks - 1), self.exponents), *operands]

    # ---- what is ready

    def _counter(self, tile: Any, chunk: Any) -> Any:
        return self.counters.iterator + (1 + tile * self.chunks + chunk)

    def _wait(self, tile: Any, chunk: Any, word: Any) -> None:
        """Until all items of a tile's chunk are ready; `word`: what its counter says then."""
        wanted = cutlass.min(Int32(self.groups_of_tile), self.all_groups - tile * self.groups_of_tile)

        def missing() -> Any:
            word[0] = cute.arch.load(self._counter(tile, chunk), Int32, sem="acquire", scope="gpu")
            return wanted - (word[0] & Int32(CHANGED - 1))

        until(missing)

    def _exponent(self, row: Any, chunk: Any) -> Any:
        at = self.exponents.iterator + cute.crd2idx((row, chunk), self.exponents.layout)
        return cute.arch.load(at, Int32, sem="relaxed", scope="gpu")

    # ---- who loads, and who multiplies

    def _await(self, column: Any, step: Any, filling: Any) -> None:
        word = cute.make_rmem_tensor((1,), Int32)
        word[0] = Int32(0)

        def wait() -> None:
            self._wait(column, step // (CHUNK // DEPTH), word)
            cute.arch.fence_proxy("async.global")

        when(step % (CHUNK // DEPTH) == 0, wait)
        # Two places for each stage: whoever read the last one's is through when the stage is free.
        self.marks[(1 - filling.phase) * self.point.depth_stages + filling.index] = word[0] // CHANGED

    def _settle(self, sums: list[Any], places: Any, at_n: Any, step: Any, reading: Any) -> None:
        mark = self.marks[reading.phase * self.point.depth_stages + reading.index]
        when(mark != 0, partial(self._lower, sums, places, at_n, step // (CHUNK // DEPTH)))

    def _lower(self, sums: list[Any], places: Any, at_n: Any, chunk: Any) -> None:
        """Sums under the exponents of a chunk, not those of the chunk before."""
        parts_m = self.point.tile_m // (64 * self.point.groups)
        last = cute.size(self.w, mode=[0]) - 1
        for part, total in enumerate(sums):
            spots = places[(None, part % parts_m, part // parts_m)]
            for q in range(self.point.atom_n // 8):
                for e in range(2):
                    column = cutlass.min(at_n + spots[((0, 0, q),)][1] + e, last)
                    change = self._exponent(column, chunk) - self._exponent(column, chunk - 1)
                    factor = power_of_two(cutlass.max(change, Int32(-126)))
                    for r in range(2):
                        total[((e, r, q), 0, 0)] = total[((e, r, q), 0, 0)] * factor

    # ---- who splits

    def _weave(self, warp: Any, rows: Any) -> None:
        p = self.point
        clusters = cute.arch.grid_dim()[0] // p.cluster
        self.together = cute.ceil_div(clusters, cutlass.min(rows, Int32(p.band))) * self.groups_of_tile
        when(warp > 0, self._items)

    def _items(self) -> None:
        lane = cute.arch.lane_idx()
        taken = cute.make_rmem_tensor((1,), Int32)
        taken[0] = Int32(0)
        count = self.all_groups * self.chunks

        def one() -> None:
            taken[0] = cute.arch.atomic_add(self.counters.iterator, Int32(1), sem="relaxed", scope="gpu")

        def take() -> Any:
            when(lane == 0, one)
            return cute.arch.shuffle_sync(taken[0], 0)

        drawn(take, count, lambda item: when(item < count, partial(self._fetch, lane, item)),
              partial(self._item, lane))  # fmt: skip

    def _item_at(self, item: Any) -> tuple[Any, Any]:
        """(group of rows, chunk)."""
        first = item // (self.together * self.chunks) * self.together
        rest = item - first * self.chunks
        wide = cutlass.min(self.together, self.all_groups - first)
        chunk = rest // wide
        return first + rest - chunk * wide, chunk

    def _fetch(self, lane: Any, item: Any) -> None:
        """An item's lines on their way to L2."""
        group, chunk = self._item_at(item)
        n, k = (cute.size(self.w, mode=[i]) for i in range(2))
        lines = CHUNK // LINE
        for i in range(GROUP * lines // 32):
            number = lane + 32 * i
            row = cutlass.min(group * GROUP + number // lines, n - 1)
            step = cutlass.min(chunk * CHUNK + number % lines * LINE, k - QUAD)
            start = self.w.iterator + cute.crd2idx((row, step, 0), self.w.layout)
            cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[start.toint()])

    def _item(self, lane: Any, item: Any) -> None:
        group, chunk = self._item_at(item)
        tile = group // self.groups_of_tile
        notes = cute.make_rmem_tensor((2,), Int32)  # what the counter says of the chunk before; whether rows changed
        notes[1] = Int32(0)
        when(chunk > 0, partial(self._wait, tile, chunk - 1, notes))
        loop(Int32(0), Int32(GROUP // TOGETHER), partial(self._rows, lane, group, chunk, notes))
        cute.arch.fence_proxy("async.global")
        cute.arch.sync_warp()

        def tell() -> None:
            more = Int32(1) + notes[1] * Int32(CHANGED)
            cute.arch.red(self._counter(tile, chunk), more, op="add", dtype="s32", sem="release", scope="gpu")

        when(lane == 0, tell)

    def _rows(self, lane: Any, group: Any, chunk: Any, notes: Any, number: Any) -> None:
        """Some rows of an item: all of what is read of them is asked for first."""
        n, k = (cute.size(self.w, mode=[i]) for i in range(2))
        steps = [chunk * CHUNK + (i * 32 + lane) * QUAD for i in range(CHUNK // (32 * QUAD))]
        rows = [group * GROUP + number * TOGETHER + i for i in range(TOGETHER)]
        held = [[self._read(cutlass.min(row, n - 1), cutlass.min(step, k - QUAD)) for step in steps] for row in rows]
        for row, quads in zip(rows, held, strict=True):
            seen = Seen(1)
            seen.look(quads)
            bits = highest(seen.most[0], 32)
            asked = m.select(bits == Int32(0), Int32(EMPTY), exponent_of(bits) >> Int32(3) << Int32(3))
            before = cute.make_rmem_tensor((1,), Int32)
            before[0] = Int32(EMPTY)
            safe = cutlass.min(row, n - 1)
            when(chunk > 0, partial(self._earlier, before, safe, chunk))
            exponent = cutlass.min(before[0], asked)
            changed = m.both(chunk > 0, exponent != before[0])
            notes[1] = m.select(changed, Int32(1), notes[1])
            when(m.both(row < n, lane == 0), partial(self._note, safe, chunk, exponent))
            scales = [Scale(exponent)] * QUAD
            for quad, step in zip(quads, steps, strict=True):
                there = m.both(row < n, step < k)
                when(there, partial(self._write, (safe, step), quad, scales, seen.odd))

    def _earlier(self, before: Any, row: Any, chunk: Any) -> None:
        before[0] = self._exponent(row, chunk - 1)

    def _note(self, row: Any, chunk: Any, exponent: Any) -> None:
        self.exponents[(row, chunk)] = exponent

    def _read(self, row: Any, step: Any) -> Any:
        held = cute.make_rmem_tensor((QUAD,), Float32)
        start = self.w.iterator + cute.crd2idx((row, step, 0), self.w.layout)
        cute.autovec_copy(cute.make_tensor(start.align(4 * QUAD), cute.make_layout((QUAD,))), held)
        return held

    def _write(self, at: tuple[Any, Any], quad: Any, scales: list[Scale], odd: Any) -> None:
        for plane, words in enumerate(split_quad(quad, scales, odd[0], RESIDUAL_SHIFT)):
            start = self.planes.iterator + cute.crd2idx((*at, plane), self.planes.layout)
            target = cute.make_tensor(cute.recast_ptr(start.align(2 * QUAD), dtype=Int32), cute.make_layout((2,)))
            cute.autovec_copy(words, target)
