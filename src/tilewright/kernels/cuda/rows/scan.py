"""Scans along one dimension: what a CTA does that keeps the running state at every element; traced inside a kernel.

    row front:    lanes of a vector -> vectors side by side in a warp -> the warp's `unroll` of them -> warps -> blocks
    column front: steps of a member -> members -> blocks, for each lane (a row of its own) by itself

Each level turns its parts' totals into what precedes each of them, so an element is reached through few merges: sums
are about as accurate as by a tree. What a state is, and how two are merged, the Scanner knows (see `scanners`).

A block's loads are issued before the block ahead of it is scanned. Steps are counted from where the scan begins: from
the end of the row where it is reversed. Where a row is split, a first launch puts the chunks' totals in the workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from ..common import math as m
from ..common.control import loop
from ..common.spec import reads
from .combine import WARP, Board, Held, combine_columns, combine_rows, select_state
from .cta import ALL, Block, Cta
from .reducers import tree
from .scanners import Scanner, State


class ScanLevels(Cta):
    """A block's elements in the order of the scan, and what precedes each of them."""

    def _allocate(self) -> None:
        """Two boards in turn, so that a block needs one barrier."""
        self.allocator = SmemAllocator()
        assert self.spec.scan is not None and self.spec.final is not None
        self.scan, self.final = self.spec.scan, self.spec.final
        self.scanner: Scanner = self.kernel.reducers[0][0]
        column = self.space.front == "column"
        parts = self.plan.threads * self.space.row_lanes if column else -(-self.plan.threads // WARP)
        alone = self.plan.group_threads == 1 if column else self.plan.group_threads <= WARP
        self.board_cells = 0 if alone else parts
        self.board = None if alone else Board(self.allocator, self.scanner, 2 * parts)

    def _first_block(self) -> Any:
        return self.chunk * self.plan.blocks_per_chunk

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

    def _inputs(self, block: Block, fragments: dict[str, list[Any]]) -> list[list[Any]]:
        """The scan's arguments, by step and lane."""
        return [self._step(block, self.scan.elements, fragments, u) for u in range(self.plan.unroll)]

    def _states(self, inputs: list[list[Any]], block: Block, row: int) -> list[list[State]]:
        """The states of a row's elements, by step, in the order of the scan."""
        found = []
        for u, values in enumerate(inputs):
            states = [self.scanner.prepare(values[lane]) for lane in self._order(row)]
            valid = block.valid[u]
            if valid is not None:
                states = [select_state(valid[0], s, self.scanner.identity()) for s in states]
            found.append(states)
        return found

    def _befores(self, totals: list[State], board: Any, row: int) -> tuple[list[State], State]:
        """For totals of this thread's steps: what precedes each of them in the block, and the block's total."""
        if self.space.front == "column":
            return self._befores_in_column(totals, board, row)
        merge, width = self.scanner.merge, min(self.plan.group_threads, WARP)
        befores, ends = [], []
        for total in totals:
            before, end = self._within_warp(total, width)
            befores.append(before)
            ends.append(end)
        starts, whole = self._chain(ends)
        if self.board is not None:
            warps = self.plan.group_threads // WARP
            self.board.put(board + self.group * warps + self.member // WARP, whole)
            cute.arch.sync_threads()
            lane = cute.arch.lane_idx()
            before, whole = self._within_warp(self.board.get(board + self.group * warps + lane % warps), warps)
            before = _shuffled(cute.arch.shuffle_sync, before, self.member // WARP)
            starts = [before if i == 0 else merge(before, start) for i, start in enumerate(starts)]
        return [merge(s, b) for s, b in zip(starts, befores, strict=True)], whole

    def _chain(self, totals: list[State]) -> tuple[list[State], State]:
        """What precedes each, and all of them."""
        starts = [self.scanner.identity()]
        for total in totals:
            starts.append(total if len(starts) == 1 else self.scanner.merge(starts[-1], total))
        return starts[:-1], starts[-1]

    def _within_warp(self, total: State, width: int) -> tuple[State, State]:
        """What precedes this lane in its segment of `width` lanes, and the whole segment's total."""
        lane = cute.arch.lane_idx() % width
        state, offset = total, 1
        while offset < width:
            left = _shuffled(cute.arch.shuffle_sync_up, state, offset)
            state = select_state(lane >= offset, self.scanner.merge(left, state), state)
            offset *= 2
        if width == 1:
            return self.scanner.identity(), total
        last = cute.arch.lane_idx() - lane + (width - 1)
        left = _shuffled(cute.arch.shuffle_sync_up, state, 1)
        return select_state(lane >= 1, left, self.scanner.identity()), _shuffled(cute.arch.shuffle_sync, state, last)

    def _befores_in_column(self, totals: list[State], board: Any, row: int) -> tuple[list[State], State]:
        starts, whole = self._chain(totals)
        if self.board is None:
            return starts, whole
        members, groups, lanes = self.plan.group_threads, self.plan.groups_per_cta, len(self.rows)
        self.board.put(board + (self.member * lanes + row) * groups + self.group, whole)
        cute.arch.sync_threads()
        parts = [self.board.get(board + (i * lanes + row) * groups + self.group) for i in range(members)]
        merge, nothing = self.scanner.merge, self.scanner.identity()
        before = tree([select_state(self.member > i, part, nothing) for i, part in enumerate(parts)], merge)
        return [before if i == 0 else merge(before, s) for i, s in enumerate(starts)], tree(parts, merge)


class ScanCta(ScanLevels):
    """Goes once over this CTA's chunk and writes the element-level outputs; the first launch of two, its total."""

    def run(self) -> None:
        self._load_rows()
        self._compute_rows(self.spec.head)
        if self.stage == 0:
            self._scatter(0, [self._total()])
            return
        carry = self._begin()

        def body(turn: Any, here: Block, fragments: dict[str, list[Any]]) -> None:
            found = self._running(here, fragments, carry, turn)
            for name, dtype, parts in zip(self.scan.results, self._result_dtypes(), found, strict=True):
                self.dtypes[name] = dtype
                fragments[name] = parts
            for u in range(len(here.steps)):
                self._write_results(here, u, self._step(here, self.final, fragments, u))

        self._over_blocks((*reads(self.scan.elements), *reads(self.final)), body)

    def _result_dtypes(self) -> tuple[str, ...]:
        return (self.scan.dtype, *("i64" for _ in self.scan.results[1:]))

    def _over_blocks(self, wanted: tuple[str, ...], body: Callable[[Any, Block, dict[str, list[Any]]], None]) -> None:
        """body(turn, block, fragments of these operands) for this chunk's blocks; loads run one block ahead."""
        known = {o.name for o in self.spec.aligned_operands}
        names = [n for n in dict.fromkeys(wanted) if n in known and n not in self.rows[0]]
        blocks = self._turns()
        ahead = self._load(self._steps(Int32(0), blocks), names)

        def step(turn: Any) -> None:
            here = self._steps(turn, blocks)
            fragments = {name: [_copy(part) for part in parts] for name, parts in ahead.items()}
            coming = turn + 1  # past a row's end this is one element; past a chunk's it would be the next chunk
            coming = cutlass.min(coming, blocks - 1) if self.plan.chunks > 1 else coming
            for name, parts in self._load(self._steps(coming, blocks), names).items():
                for old, new in zip(ahead[name], parts, strict=True):
                    old.store(new.load())
            body(turn, here, fragments)

        loop(Int32(0), blocks, step)

    def _turns(self) -> Any:
        """Blocks of this chunk."""
        return cutlass.min(Int32(self.plan.blocks) - self._first_block(), Int32(self.plan.blocks_per_chunk))

    def _total(self) -> Held:
        """All of this chunk merged; threads meet at each block only where the order matters."""
        total = Held(self.scanner, len(self.rows))

        def in_order(turn: Any, here: Block, fragments: dict[str, list[Any]]) -> None:
            inputs = self._inputs(here, fragments)
            for row in range(len(self.rows)):
                ends = [self._chain(states)[1] for states in self._states(inputs, here, row)]
                total.merge(row, self._befores(ends, (turn & 1) * self.board_cells, row)[1])

        def in_any(turn: Any, here: Block, fragments: dict[str, list[Any]]) -> None:
            inputs = self._inputs(here, fragments)
            for row in range(len(self.rows)):
                states = [s for step in self._states(inputs, here, row) for s in step]
                total.merge(row, tree(states, self.scanner.merge))

        self._over_blocks(reads(self.scan.elements), in_order if self.scanner.ordered else in_any)
        if not self.scanner.ordered:
            where = {"group": self.group, "member": self.member, "group_threads": self.plan.group_threads}
            if self.space.front == "row":
                combine_rows([total], [self.board], **where)
            else:
                combine_columns([total], [self.board], groups=self.plan.groups_per_cta, **where)
        return total

    def _begin(self) -> Held:
        """What precedes this chunk."""
        carry = Held(self.scanner, len(self.rows))
        if self.stage == ALL:
            return carry
        space, chunks = self.kernel.workspaces[0][0], self.plan.chunks
        each = -(-chunks // self.plan.group_threads)
        mine = Int32(chunks - 1) - self.chunk if self.scan.reverse else self.chunk

        def body(turn: Any) -> None:
            place = self.member * each + turn  # of a chunk, in the order of the scan
            nearest = cutlass.min(place, Int32(chunks - 1))
            nearest = Int32(chunks - 1) - nearest if self.scan.reverse else nearest
            for row in range(carry.lanes):
                state = space.get(self.work, nearest, self._row_index() + row)
                carry.merge(row, select_state(place < mine, state, self.scanner.identity()))

        loop(Int32(0), Int32(each), body)
        for row in range(carry.lanes):
            carry[row] = self._befores([carry[row]], Int32(0), row)[1]
        if self.board is not None:
            cute.arch.sync_threads()  # the first block writes to the same board
        return carry

    def _running(self, block: Block, fragments: dict[str, list[Any]], carry: Held, turn: Any) -> list[list[Any]]:
        """The scan's results at these steps, a fragment each; `carry` moves on by the whole block."""
        kinds = [m.value_type("i32" if dtype == "bool" else dtype) for dtype in self._result_dtypes()]
        found = [[cute.make_rmem_tensor((self.space.vector,), kind) for _ in block.steps] for kind in kinds]
        inputs = self._inputs(block, fragments)
        board = (turn & 1) * self.board_cells
        for row in range(len(self.rows)):
            # running[u][i]: the state over the first i elements of step u
            running: list[list[State]] = []
            for states in self._states(inputs, block, row):
                starts, end = self._chain(states)
                running.append([*starts, end])
            befores, total = self._befores([chain[-1] for chain in running], board, row)
            for u, (chain, before) in enumerate(zip(running, befores, strict=True)):
                before = self.scanner.merge(carry[row], before)
                for i, lane in enumerate(self._order(row)):
                    if self.scan.exclusive:
                        state = self.scanner.merge(before, chain[i]) if i else before
                    else:
                        state = self.scanner.merge(before, chain[i + 1])
                    for parts, value in zip(found, self.scanner.results(state), strict=True):
                        parts[u][lane] = value
            carry.merge(row, total)
        return found


def _shuffled(shuffle: Callable[..., Any], state: State, by: Any) -> State:
    return tuple(shuffle(value, by) for value in state)


def _copy(fragment: Any) -> Any:
    copied = cute.make_rmem_tensor(fragment.shape, fragment.element_type)
    copied.store(fragment.load())
    return copied
