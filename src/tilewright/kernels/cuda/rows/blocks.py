"""How a CTA goes through its chunk of the rows: blocks of steps, the elements of a block, and where results go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Uint32, cute

from ..common import math as m
from ..common.control import loop, when
from ..common.spec import Function, reads
from ..common.views import POSITION
from .cta_rows import CtaRows, called
from .reducers import Reducer


class Block:
    """The steps that a thread takes at once. `valid[u]` is None (all lanes), or one Boolean per lane. `held`, `own`,
    `asked`: see `team`."""

    held: int | None = None
    own: int | None = None
    asked = False

    def __init__(self, steps: list[Any], valid: list[list[Any] | None], slots: list[Any], by_element: bool) -> None:
        self.steps = steps
        self.valid = valid
        self.slots = slots
        self.by_element = by_element  # lanes are clamped one by one: the row's tail is in here


class CtaBlocks(CtaRows):
    """The elements of a CTA's rows, block by block."""

    def _make_block(self, index: Any, first: Any, masked: bool) -> Block:
        plan, space = self.plan, self.space
        steps: list[Any] = []
        slots: list[Any] = []
        valid: list[list[Any] | None] = []
        tail = masked and space.tail > 0
        for u in range(plan.unroll):
            step = index * plan.block_steps + (u * plan.group_threads) + self.member
            slots.append((index - first) * plan.unroll + u)
            if not masked:
                valid.append(None)
            elif tail:
                valid.append(self.at.inside(step))
            else:
                valid.append([step < self.steps] * space.vector)
                step = cutlass.min(step, Int32(self.steps - 1))
            steps.append(step)
        return Block(steps, valid, slots, tail)

    def _fetch(self, block: Block, name: str) -> list[Any]:
        """One fragment a step, from wherever the operand is nearest."""
        found = self.resident.get(name, block.slots)
        if found is not None:
            return found
        if block.by_element and self.at.lane_stride(name):
            lanes = range(self.space.vector)
            return [self.at.load_lanes(name, [self.at.at_lane(name, s, j) for j in lanes]) for s in block.steps]
        loaded = [self.at.load(name, self.at.at_step(name, step)) for step in block.steps]
        self.resident.put(name, block.slots, loaded)
        return loaded

    def _position(self, name: str, block: Block, u: int, lane: int) -> Any:
        """The value of an `index_<d>` or `POSITION` view."""
        if block.by_element:
            return self.at.at_lane(name, block.steps[u], lane)
        return self.at.at_step(name, block.steps[u]) + lane * self.at.lane_stride(name)

    def _fetch_all(self, block: Block, function: Function) -> dict[str, list[Any]]:
        """Fragments [step] of every element-level operand that the function reads: all loads are issued here."""
        return {n: self._fetch(block, n) for n in reads(function) if n in self.dtypes and n not in self.rows[0]}

    def _step(self, block: Block, function: Function, fragments: dict[str, list[Any]], u: int) -> list[Any]:
        """function's results for each lane of step u."""
        names = reads(function)
        per_lane = []
        for lane in range(self.space.vector):
            row = self.rows[lane % len(self.rows)]
            values = {n: row[n] for n in names if n in row}
            for name, parts in fragments.items():
                part = parts[u]
                values[name] = m.lane_of(part, min(lane, cute.size(part) - 1), self.dtypes[name])
            for name in names:
                if self.shares is not None and name == self.shares.name:
                    values[name] = self.shares.get(u, lane)
                elif name not in values:
                    values[name] = self._position(name, block, u, lane)
            per_lane.append(called(function, values))
        return per_lane

    def _where(
        self, block: Block, reducer: Reducer, cells: list[tuple[int, int]]
    ) -> tuple[list[Any] | None, list[Any]]:
        """Which cells (step, lane) are valid, and their positions where the reduction asks for them."""
        masks = [block.valid[u] for u, _ in cells]
        valid = None if masks[0] is None else [mask[j] for mask, (_, j) in zip(masks, cells, strict=True) if mask]
        places = [self._position(POSITION, block, u, j) for u, j in cells] if reducer.needs_positions else []
        return valid, places

    def _walk(self, sweep: int, body: Callable[[Block], None]) -> None:
        """body(block) for the blocks of this CTA's chunk, whole ones first."""
        plan = self.plan
        if not self.spec.reduced and (plan.rows != "fixed" or plan.chunks < plan.blocks):
            (self._walk_in_turn if plan.rows == "fixed" else self._walk_free)(body)
            return
        full, per_chunk = plan.full_blocks, plan.blocks_per_chunk
        rest = plan.blocks > full
        if plan.row_storage == "registers":
            whole = plan.chunks * plan.block_steps == self.space.steps and not self.space.tail
            body(self._make_block(self.chunk, self.chunk, masked=not whole))
            return
        lo = self.chunk * per_chunk
        hi = cutlass.min(lo + per_chunk, Int32(full))
        if sweep == 0 and self.resident.segments:
            for number in range(self.resident.segments):
                cute.arch.cp_async_wait_group(self.resident.segments - 1 - number)
                begin, end = self.resident.segment(number, lo, hi)
                loop(begin, end, lambda b: body(self._make_block(b, lo, masked=False)))
        elif per_chunk == 1:
            if full:
                when(self.chunk < full, lambda: body(self._make_block(self.chunk, lo, masked=False)))
        elif plan.row_storage == "reread" and sweep % 2 == 1:  # back to front: the end of the row is still in L2
            loop(lo, hi, lambda b: body(self._make_block(lo + hi - 1 - b, lo, masked=False)))
        else:
            loop(lo, hi, lambda b: body(self._make_block(b, lo, masked=False)))
        if rest and plan.chunks == 1:
            body(self._make_block(Int32(full), lo, masked=True))
        elif rest:
            when(self.chunk == full // per_chunk, lambda: body(self._make_block(Int32(full), lo, masked=True)))

    def _walk_free(self, body: Callable[[Block], None]) -> None:
        """body(block) for the one block of a CTA, of as many as all rows make."""
        if self.plan.rows == "full":
            body(self._make_block(self.chunk, self.chunk, masked=False))
            return
        full = Int32(Uint32(self.steps) // Uint32(self.plan.block_steps))
        when(self.chunk < full, lambda: body(self._make_block(self.chunk, self.chunk, masked=False)))
        when(self.chunk == full, lambda: body(self._make_block(full, full, masked=True)))

    def _walk_in_turn(self, body: Callable[[Block], None]) -> None:
        """body(block) for every `chunks`-th block of a pointwise space: all CTAs walk through memory side by side."""
        plan, full, chunks = self.plan, self.plan.full_blocks, self.plan.chunks

        def one(turn: Any) -> None:
            index = self.chunk + turn * chunks
            body(self._make_block(index, index, masked=False))

        loop(Int32(0), (Int32(full + chunks - 1) - self.chunk) // chunks, one)
        if plan.blocks > full:
            when(self.chunk == full % chunks, lambda: body(self._make_block(Int32(full), Int32(full), masked=True)))

    def _write_results(self, block: Block, u: int, results: list[list[Any]]) -> None:
        """Step u's element-level outputs, of the last function's `results` for each lane."""
        dtypes = {o.name: o.dtype for o in self.spec.outputs}
        for number, name in enumerate(self.spec.element_outputs):
            values = [m.stored(lane[number], dtypes[name]) for lane in results]
            self._write_step(f"out_{name}", block, u, block.steps[u], values)

    def _write_step(self, name: str, block: Block, u: int, step: Any, values: list[Any]) -> None:
        valid = block.valid[u]
        if not block.by_element:
            offset = self.at.at_step(name, step)
            self._guarded(None if valid is None else valid[0], partial(self.at.store, name, offset, values))
            return
        assert valid is not None
        for lane, value in enumerate(values):
            self._guarded(valid[lane], partial(self.at.store, name, self.at.at_lane(name, step, lane), [value]))

    def _guarded(self, condition: Any, body: Callable[[], None]) -> None:
        """body() where the condition holds and the group exists."""
        if self.alive is not None:
            condition = self.alive if condition is None else m.both(self.alive, condition)
        if condition is None:
            body()
        else:
            when(Boolean(condition), body)
