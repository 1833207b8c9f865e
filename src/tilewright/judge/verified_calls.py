"""What a candidate's timed calls are given and held to: new contents, a redrawn state, the truth of some results."""

from __future__ import annotations

import random

from .check import draws
from .check.check import Check
from .check.plan import Trial, secret
from .timing import measure as timing
from .timing.interleave import BurstSchedule, VerifiedLook
from .wire import messages as wire


class VerifiedCalls:
    """The calls of one candidate in the case memory of its check."""

    def __init__(self, check: Check, rng: random.Random) -> None:
        self._check, self._rng = check, rng
        self._seeds: dict[int, int] = {}  # of what was drawn last for a pool set
        self._drawn: draws.TimedDraws | None = None

    def fill(self) -> None:
        """Inputs in every pool set, and the state."""
        self.draw_anew(self._check.memory.pool)
        self._check.memory.state.take()
        self._check.state.load()

    def draw_anew(self, sets: int) -> None:
        for k in range(sets):
            self.renew(k)

    def renew(self, k: int, again: bool = False) -> None:
        """Contents that were never there, in a pool set; or those of the last time."""
        self._seeds[k] = self._seeds[k] if again else secret(self._rng)
        self._check.memory.sets.draw(k, family="own", seed=self._seeds[k])

    def look(self, table: BurstSchedule) -> VerifiedLook:
        """How timed calls are verified."""
        return VerifiedLook(after=lambda number: self._verify_timed(table, number))

    def redraw(self) -> None:
        """Re-draw parameters and buffers where they are: what was remembered of them is wrong now."""
        memory = self._check.memory
        if memory.state.names or memory.state.attributes:
            if memory.described.mutated_state:
                memory.state.give()  # eager's timed calls have moved it: a cache would be full after some
            self._check.state.redraw(secret(self._rng))
            memory.state.take()
            self._check.state.load()

    def _verify_timed(self, table: BurstSchedule, number: int) -> None:
        """Hold what the timed call just made returned against the truth on the pool set that it was given."""
        left = self._take(wire.HoldTimed())
        timing.check_contents(table)
        self._check.state.require_kept()
        self._hold_to_truth(table, number, left)
        if not self._check.memory.tight:
            for subject in table.subjects:
                table.call(subject)  # their memory is their own again when the next sample is taken

    def verify_row(self, table: BurstSchedule, slot: int, number: int) -> None:
        """The same of a call in a row, when the judge's sets have caught up with the slots."""
        self._hold_to_truth(table, slot, self._take(wire.HoldTimed(number=number)))

    def _take(self, request: wire.HoldTimed) -> tuple[wire.Attribute, ...]:
        """Have what a timed call returned, and what it left of the state, in their places; and the plain values that it
        left."""
        check = self._check
        called = check.cell.ask(request, wire.Called, limit_s=check.memory.limits.call_s)
        check.accept(called)
        check.fetch(tag=0, place=0)
        if check.state.moved:
            check.cell.do(
                wire.StoreRequest(tag=wire.LEFT, refs=self._check.memory.state.buffers(check.state.moved, left=True))
            )
        return called.attributes

    def _hold_to_truth(self, table: BurstSchedule, number: int, left: tuple[wire.Attribute, ...]) -> None:
        check, memory = self._check, self._check.memory
        for subject in table.subjects:
            subject.cell.do(wire.Drop())
        memory.state.give()  # from which the call started
        trial = Trial(case=check.case, family="own", seed=secret(self._rng), redraw=0, draws=secret(self._rng))
        if memory.described.random:
            self._drawn = self._drawn or draws.TimedDraws(check, self._rng)
            self._drawn.hold(trial, k=number, left=left)
        elif check.usable(trial, memory.truths.run(number, seed=trial.draws).exact):
            check.compare(trial, 0, " of a timed call", k=number)
            check.hold_state(trial, left, "a timed call")
