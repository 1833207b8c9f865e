"""The first of each row in order (top-k): what a CTA does after its sweeps; traced inside a kernel.

    elements -> a list for each warp (see `ranking`) -> a tree over the row's warps -> [chunks, by a workspace] -> rows

Each warp has a share of every block, in ascending order of positions. Where a row is split, each chunk's list goes to
the workspace, and the last launch merges the lists.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64, cute

from ..common import math as m
from ..common.control import loop, when
from ..common.views import POSITION
from .cta import ALL, Block, Cta
from .ranking import BATCH, NOTHING, WARP, KeyOrder, WarpRank, depth_of, position_of, queue_keys, word_of

AHEAD = 4  # chunks' lists that are read before the first of them is merged


class Lists:
    """Global memory for sorted lists of keys, [row][chunk][element]."""

    def __init__(self, *, count: int, rows: int, chunks: int, offset: int) -> None:
        self.cells = depth_of(count) * WARP
        self.chunks, self.offset = chunks, offset
        self.end = offset + 8 * self.cells * rows * chunks

    def at(self, work: Any, row: Any, chunk: Any) -> Any:
        base = cute.recast_ptr(work.iterator + self.offset, dtype=Int64)
        start = (Int64(row) * self.chunks + Int64(chunk)) * self.cells
        return cute.make_tensor(base + start, cute.make_layout((self.cells,)))


def _place_of(cta: Cta, block: Block, cells: list[tuple[int, int]], i: int) -> Any:
    """The position of the element in the i-th of these cells, (step, lane)."""
    return cta._position(POSITION, block, *cells[i])


class RankCta(Cta):
    """Sweeps as ever; then the launch after them ranks, and one more, where rows are split, merges."""

    def _allocate(self) -> None:
        super()._allocate()
        assert self.spec.rank is not None
        self.rank = self.spec.rank
        self.order = KeyOrder(op=self.rank.op, source=self.rank.source)
        self.warps = self.plan.group_threads // WARP  # of a row
        cells = queue_keys(self.rank.count)
        layout = cute.make_layout((self.plan.threads // WARP * cells,))
        self.queues = self.allocator.allocate_tensor(Int64, layout, byte_alignment=16)

    def _queue(self, warp: Any) -> Any:
        cells = queue_keys(self.rank.count)
        return cute.make_tensor(self.queues.iterator + warp * cells, cute.make_layout((cells,)))

    def run(self) -> None:
        sweeps = len(self.spec.sweeps)
        self._load_rows()
        self._compute_rows(self.spec.head)
        self.warp = self.group * self.warps + self.member // WARP
        if self.stage == ALL:
            for sweep in range(sweeps):
                self._finish(sweep, self._reduce(sweep))
            self._write_ranked(self._ranked())
            self._end()
            return
        for sweep in range(min(self.stage, sweeps)):
            self._finish(sweep, self._gather(sweep))
        if self.stage < sweeps:
            self._scatter(self.stage, self._reduce(self.stage))
        elif self.stage == sweeps:
            self._keep(self._ranked())
        else:
            when(self.chunk == 0, lambda: self._write_ranked(self._merged()))
            self._end()

    def _new(self) -> WarpRank:
        return WarpRank(self.order, self.rank.count, self._queue(self.warp))

    def _ranked(self) -> WarpRank:
        """The first of this CTA's chunk, in the first warp of each row."""
        found = self._new()

        def body(block: Block) -> None:
            fragments = self._fetch_all(block, self.rank.elements)
            some = max(BATCH // self.space.vector, 1)
            for start in range(0, self.plan.unroll, some):
                turns = range(start, min(start + some, self.plan.unroll))
                results = {u: self._step(block, self.rank.elements, fragments, u) for u in turns}
                cells = [(u, j) for u in turns for j in range(self.space.vector)]
                masks = [(block.valid[u], j) for u, j in cells]
                valid = None if masks[0][0] is None else [mask[j] for mask, j in masks if mask is not None]
                values = [self.order.prepare(results[u][j][0]) for u, j in cells]
                found.offer(values, valid, partial(_place_of, self, block, cells))

        self._walk(len(self.spec.sweeps), body)
        found.finish()
        self._join_warps(found)
        return found

    def _join_warps(self, found: WarpRank) -> None:
        """Halves the warps that hold something, until it is the first of each row."""
        others = self.warps // 2
        while others:
            found.publish()
            cute.arch.sync_threads()
            there = self._queue(self.warp + others)
            when(self.member < others * WARP, lambda there=there: found.merge(self._reversed(there)))
            cute.arch.sync_threads()
            others //= 2

    def _reversed(self, cells: Any) -> list[Any]:
        """A list's registers, the least first."""
        last = depth_of(self.rank.count) * WARP - 1
        return [cells[last - r * WARP - cute.arch.lane_idx()] for r in range(depth_of(self.rank.count))]

    # ---- split rows ------------------------------------------------------------------------------------------------

    def _lists(self, chunk: Any) -> Any:
        assert self.kernel.lists is not None
        return self.kernel.lists.at(self.work, self.group_index, chunk)

    def _keep(self, found: WarpRank) -> None:
        """This chunk's list to the workspace."""
        cells = self._lists(self.chunk)

        def body() -> None:
            for register, key in enumerate(found.registers()):
                cells[cute.arch.lane_idx() + register * WARP] = key

        self._guarded(self.member < WARP, body)

    def _merged(self) -> WarpRank:
        """The first of whole rows, in the first warp of each."""
        found, chunks = self._new(), self.plan.chunks
        mine = self.member // WARP

        def body(turn: Any) -> None:
            lists = []
            for k in range(AHEAD):
                chunk = (turn * AHEAD + k) * self.warps + mine
                keys = self._reversed(self._lists(cutlass.min(chunk, Int32(chunks - 1))))
                lists.append([m.select(chunk < chunks, key, Int64(NOTHING)) for key in keys])
            for keys in lists:
                greater = [Boolean(key > own) for key, own in zip(keys, found.registers(), strict=True)]
                some = greater[0] if len(greater) == 1 else m.either(*greater)
                when(cute.arch.vote_any_sync(some), partial(found.merge, keys))

        loop(Int32(0), Int32(-(-chunks // (self.warps * AHEAD))), body)
        self._join_warps(found)
        return found

    # ---- results ---------------------------------------------------------------------------------------------------

    def _write_ranked(self, found: WarpRank) -> None:
        """Values and positions, by the first warp of a row."""
        dtypes = {o.name: o.dtype for o in self.spec.outputs}
        for register, key in enumerate(found.registers()):
            place = cute.arch.lane_idx() + register * WARP
            values = (self.order.value(word_of(key)), position_of(key))
            for result, value in zip(self.rank.results, values, strict=True):
                if result in dtypes:
                    stored = m.stored(value, dtypes[result])
                    write = partial(self._write_place, f"out_{result}", place, stored)
                    self._guarded(m.both(self.member < WARP, place < self.rank.count), write)

    def _write_place(self, name: str, place: Any, value: Any) -> None:
        offset = self.at.base[name] + self.at.kind(place) * self.at.lane_stride(name)
        fragment = cute.make_rmem_tensor((1,), self.at.tensors[name].element_type)
        fragment[0] = value
        cute.autovec_copy(fragment, self.at.vector(name, offset, 1))
