"""Scans along one dimension: what a CTA does that keeps the running state at every element; traced inside a kernel.

    row front:    lanes of a vector -> vectors side by side in a warp -> the warp's `unroll` of them -> warps -> blocks
    column front: steps of a member -> members -> blocks, for each lane (a row of its own) by itself

Each level turns its parts' totals into what precedes each of them, so an element is reached through few roundings:
sums are about as accurate as by a tree. Products are held in f64: that of a few hundred neighbours can leave fp32's
range where that of the row so far is 0, and 0 * inf would be NaN.

A block's loads are issued before the block ahead of it is scanned. Steps are counted from where the scan begins: from
the end of the row where it is reversed.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute

from . import math as m
from .combine import WARP, Board, Held
from .control import loop
from .cta import ALL, Block, Cta
from .reducers import Reducer, Value, tree
from .spec import reads


class ScanCta(Cta):
    """The last launch of a scan: goes once over this CTA's chunk and writes the element-level outputs."""

    def _allocate(self) -> None:
        """Two boards in turn, so that a block needs one barrier."""
        super()._allocate()
        self.reducer: Reducer = self.kernel.reducers[0][0]
        column = self.space.front == "column"
        parts = self.plan.threads * self.space.row_lanes if column else -(-self.plan.threads // WARP)
        alone = self.plan.group_threads == 1 if column else self.plan.group_threads <= WARP
        self.board_cells = 0 if alone else parts
        self.board = None if alone else Board(self.allocator, self.reducer, 2 * parts)

    def run(self) -> None:
        self._load_rows()
        self._compute_rows(self.spec.head)
        assert self.spec.scan is not None and self.spec.final is not None
        self.scan = self.spec.scan
        carry = self._begin()
        function = self.spec.sweeps[0].elements
        wanted = dict.fromkeys((*reads(function), *reads(self.spec.final)))
        names = [n for n in wanted if n in self.dtypes and n not in self.rows[0]]
        self.dtypes[self.scan.result] = self.scan.dtype
        blocks = cutlass.min(Int32(self.plan.blocks) - self._first_block(), Int32(self.plan.blocks_per_chunk))
        ahead = self._load(self._steps(Int32(0), blocks), names)

        def body(turn: Any) -> None:
            here = self._steps(turn, blocks)
            fragments = {name: [_copy(part) for part in parts] for name, parts in ahead.items()}
            coming = turn + 1  # past a row's end this is one element; past a chunk's it would be the next chunk
            coming = cutlass.min(coming, blocks - 1) if self.plan.chunks > 1 else coming
            for name, parts in self._load(self._steps(coming, blocks), names).items():
                for old, new in zip(ahead[name], parts, strict=True):
                    old.store(new.load())
            fragments[self.scan.result] = self._running(here, fragments, carry, turn)
            self._write(here, fragments)

        loop(Int32(0), blocks, body)

    def _first_block(self) -> Any:
        return self.chunk * self.plan.blocks_per_chunk

    def _begin(self) -> Held:
        """What precedes this chunk."""
        carry = Held(self.reducer, len(self.rows))
        if self.stage == ALL:
            return carry
        reverse, mine = self.scan.reverse, self.chunk
        self.kernel.workspaces[0][0].gather(
            self.work, carry, row=self._row_index(), member=self.member, group_threads=self.plan.group_threads,
            counts=lambda chunk: chunk > mine if reverse else chunk < mine,
        )  # fmt: skip
        self._combine(0, [carry])
        return carry

    # ---- elements --------------------------------------------------------------------------------------------------

    def _steps(self, turn: Any, blocks: Any) -> Block:
        """The steps of this thread in the chunk's block `turn`, in the order of the scan, clamped into the row."""
        plan, count = self.plan, self.space.steps
        exact = count % plan.block_steps == 0
        index = self._first_block() + (blocks - 1 - turn if self.scan.reverse else turn)
        steps: list[Any] = []
        valid: list[list[Any] | None] = []
        for u in range(plan.unroll):
            place = self._place_in_block(u)
            step = index * plan.block_steps + (plan.block_steps - 1 - place if self.scan.reverse else place)
            valid.append(None if exact else [step < count] * self.space.vector)
            steps.append(cutlass.max(cutlass.min(step, Int32(count - 1)), Int32(0)))
        return Block(steps, valid, [], False)

    def _place_in_block(self, u: int) -> Any:
        if self.space.front == "column":
            return self.member * self.plan.unroll + u
        width = min(self.plan.group_threads, WARP)
        return (self.member // width * self.plan.unroll + u) * width + self.member % width

    def _load(self, block: Block, names: list[str]) -> dict[str, list[Any]]:
        return {n: [self.at.load(n, self.at.at_step(n, step)) for step in block.steps] for n in names}

    def _order(self, row: int) -> list[int]:
        """The lanes of a row, in the order of the scan."""
        if self.space.front == "column":
            return [row]
        lanes = list(range(self.space.vector))
        return lanes[::-1] if self.scan.reverse else lanes

    def _running(self, block: Block, fragments: dict[str, list[Any]], carry: Held, turn: Any) -> list[Any]:
        """The scan's values at these steps, a fragment each; `carry` moves on by the whole block."""
        kind = self.reducer.types[0]
        found = [cute.make_rmem_tensor((self.space.vector,), kind) for _ in block.steps]
        function = self.spec.sweeps[0].elements
        inputs = [self._step(block, function, fragments, u) for u in range(self.plan.unroll)]
        board = (turn & 1) * self.board_cells
        for row in range(len(self.rows)):
            order = self._order(row)
            # running[u][i]: the state over the first i elements of step u
            running: list[list[Value]] = []
            for u, values in enumerate(inputs):
                chain = [self.reducer.identity()[0]]
                for lane in order:
                    value = self._masked(self.reducer.prepare(values[lane][0]), block, u)
                    chain.append(value if len(chain) == 1 else self._join(chain[-1], value))
                running.append(chain)
            befores, total = self._befores([chain[-1] for chain in running], board, row)
            for chain, before, fragment in zip(running, befores, found, strict=True):
                before = self._join(carry[row][0], before)
                for i, lane in enumerate(order):
                    if self.scan.exclusive:
                        fragment[lane] = self._join(before, chain[i]) if i else before
                    else:
                        fragment[lane] = self._join(before, chain[i + 1])
            carry[row] = (self._join(carry[row][0], total),)
        return found

    def _masked(self, value: Value, block: Block, u: int) -> Value:
        valid = block.valid[u]
        return value if valid is None else m.select(valid[0], value, self.reducer.identity()[0])

    def _join(self, a: Value, b: Value) -> Value:
        return self.reducer.merge((a,), (b,))[0]

    def _write(self, block: Block, fragments: dict[str, list[Any]]) -> None:
        dtypes = {o.name: o.dtype for o in self.spec.outputs}
        final = self.spec.final
        assert final is not None
        for u, step in enumerate(block.steps):
            results = self._step(block, final, fragments, u)
            for number, name in enumerate(self.spec.element_outputs):
                values = [m.stored(lane[number], dtypes[name]) for lane in results]
                self._write_step(f"out_{name}", block, u, step, values)

    # ---- what precedes ---------------------------------------------------------------------------------------------

    def _befores(self, totals: list[Value], board: Any, row: int) -> tuple[list[Value], Value]:
        """For totals of this thread's steps: what precedes each of them in the block, and the block's total."""
        if self.space.front == "column":
            return self._befores_in_column(totals, board, row)
        width = min(self.plan.group_threads, WARP)
        befores, ends = [], []
        for total in totals:
            before, end = self._within_warp(total, width)
            befores.append(before)
            ends.append(end)
        starts, whole = self._chain(ends)
        if self.board is not None:
            warps = self.plan.group_threads // WARP
            self.board.put(board + self.group * warps + self.member // WARP, (whole,))
            cute.arch.sync_threads()
            lane = cute.arch.lane_idx()
            (part,) = self.board.get(board + self.group * warps + lane % warps)
            before, whole = self._within_warp(part, warps)
            before = cute.arch.shuffle_sync(before, self.member // WARP)
            starts = [before if i == 0 else self._join(before, start) for i, start in enumerate(starts)]
        return [self._join(s, b) for s, b in zip(starts, befores, strict=True)], whole

    def _chain(self, totals: list[Value]) -> tuple[list[Value], Value]:
        """What precedes each, and all of them."""
        starts = [self.reducer.identity()[0]]
        for total in totals:
            starts.append(total if len(starts) == 1 else self._join(starts[-1], total))
        return starts[:-1], starts[-1]

    def _within_warp(self, total: Value, width: int) -> tuple[Value, Value]:
        """What precedes this lane in its segment of `width` lanes, and the whole segment's total."""
        lane = cute.arch.lane_idx() % width
        state, offset = total, 1
        while offset < width:
            left = cute.arch.shuffle_sync_up(state, offset)
            state = m.select(lane >= offset, self._join(left, state), state)
            offset *= 2
        if width == 1:
            return self.reducer.identity()[0], total
        last = cute.arch.lane_idx() - lane + (width - 1)
        left = m.select(lane >= 1, cute.arch.shuffle_sync_up(state, 1), self.reducer.identity()[0])
        return left, cute.arch.shuffle_sync(state, last)

    def _befores_in_column(self, totals: list[Value], board: Any, row: int) -> tuple[list[Value], Value]:
        starts, whole = self._chain(totals)
        if self.board is None:
            return starts, whole
        members, groups, lanes = self.plan.group_threads, self.plan.groups_per_cta, len(self.rows)
        self.board.put(board + (self.member * lanes + row) * groups + self.group, (whole,))
        cute.arch.sync_threads()
        parts = [self.board.get(board + (i * lanes + row) * groups + self.group)[0] for i in range(members)]
        nothing = self.reducer.identity()[0]
        before = tree([m.select(self.member > i, part, nothing) for i, part in enumerate(parts)], self._join)
        return [before if i == 0 else self._join(before, s) for i, s in enumerate(starts)], tree(parts, self._join)


def _copy(fragment: Any) -> Any:
    copied = cute.make_rmem_tensor(fragment.shape, fragment.element_type)
    copied.store(fragment.load())
    return copied
