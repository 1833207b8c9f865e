"""Scans of few long rows, read once: the CTAs of a team stay on the chip and take a row's blocks in turn.

    a row, in the order of the scan    | turn 0: block of CTA 0 | 1 | .. | chunks - 1 | turn 1: CTA 0 | 1 | ..

In each turn every CTA tells the others its block's total, and hears theirs: what precedes its block in this turn, and
what the turn adds to what all later ones begin with. Totals are merged in one order, so results repeat to the last bit.
Loads of the next turn are on their way meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
from cutlass import Int32, cute

from ..common import math as m
from ..common.control import when
from .combine import WARP, Board, Held, select_state
from .cta import Block
from .reducers import State
from .scan import ScanCta


class RelayCta(ScanCta):
    """CTA `chunk` of team `group_index`, which has one row."""

    def _allocate(self) -> None:
        super()._allocate()
        self.warps = -(-self.plan.chunks // WARP)  # that hear something
        self.told = Board(self.allocator, self.scanner, 2 * (self.warps + 1))

    def _turns(self) -> Any:
        return Int32(self.plan.blocks_per_chunk)

    def _steps(self, turn: Any, blocks: Any) -> Block:
        """The steps of this thread in its block of a turn; there may be none in the last."""
        plan, count = self.plan, self.space.steps
        place = turn * plan.chunks + self.chunk
        index = Int32(plan.blocks - 1) - place if self.scan.reverse else place
        exact = count % plan.block_steps == 0 and plan.blocks % plan.chunks == 0
        steps: list[Any] = []
        valid: list[list[Any] | None] = []
        for u in range(plan.unroll):
            inner = self._place_in_block(u)
            step = index * plan.block_steps + (plan.block_steps - 1 - inner if self.scan.reverse else inner)
            valid.append(None if exact else [m.both(step >= 0, step < count)] * self.space.vector)
            steps.append(cutlass.max(cutlass.min(step, Int32(count - 1)), Int32(0)))
        return Block(steps, valid, [], False)

    def _running(self, block: Block, fragments: dict[str, list[Any]], carry: Held, turn: Any) -> list[list[Any]]:
        self.turn = turn
        return super()._running(block, fragments, carry, turn)

    def _befores(self, totals: list[State], board: Any, row: int) -> tuple[list[State], State]:
        """What precedes each of this thread's steps in this turn, and the turn's total."""
        befores, mine = super()._befores(totals, board, row)
        before, whole = self._relayed(mine)
        return [self.scanner.merge(before, each) for each in befores], whole

    def _relayed(self, mine: State) -> tuple[State, State]:
        """What the CTAs before this one have in this turn, and what all have."""
        merge, nothing = self.scanner.merge, self.scanner.identity()
        boxes = self.kernel.mailboxes[0][0]
        where = {"team": self.group_index, "turn": self.turn}
        when(self.member == 0, partial(boxes.put, self.work, mine, chunk=self.chunk, **where))
        heard = Held(self.scanner, 1)

        def hear() -> None:
            heard[0] = boxes.get(self.work, chunk=self.member, **where)

        when(self.member < self.plan.chunks, hear)
        before, end = self._within_warp(heard[0], WARP)
        first = (self.turn & 1) * (self.warps + 1)
        warp = self.member // WARP
        told = m.both(cute.arch.lane_idx() == 0, warp < self.warps)
        when(told, partial(self.told.put, first + warp, end))
        when(self.member == self.chunk, partial(self.told.put, first + self.warps, before))
        cute.arch.sync_threads()
        ahead = whole = nothing
        for number in range(self.warps):
            part = self.told.get(first + number)
            ahead = select_state(number < self.chunk // WARP, merge(ahead, part), ahead)
            whole = merge(whole, part)
        return merge(ahead, self.told.get(first + self.warps)), whole
