"""What a candidate's timed calls are given and held to: new contents, a redrawn state, the truth of some results."""

from __future__ import annotations

import random

from .check import draws
from .check.check import Check
from .check.plan import Trial, secret
from .timing import measure as timing
from .timing.interleave import Look, Table
from .wire import messages as wire


class VerifiedCalls:
    """The calls of one candidate in the room of its check."""

    def __init__(self, check: Check, rng: random.Random) -> None:
        self._check, self._rng = check, rng
        self._seeds: dict[int, int] = {}  # of what was drawn last for a pool set
        self._drawn: draws.Timed | None = None

    def fill(self) -> None:
        """Inputs in every pool set, and the state."""
        self.draw_anew(self._check.room.pool)
        self._check.room.state.take()
        self._check.state.load()

    def draw_anew(self, sets: int) -> None:
        for k in range(sets):
            self.renew(k)

    def renew(self, k: int, again: bool = False) -> None:
        """Contents that were never there, in a pool set; or those of the last time."""
        self._seeds[k] = self._seeds[k] if again else secret(self._rng)
        self._check.room.draw(k, family="own", seed=self._seeds[k])

    def look(self, table: Table) -> Look:
        """How timed calls are verified."""
        return Look(after=lambda number: self._verify_timed(table, number))

    def redraw(self) -> None:
        """Re-draw parameters and buffers where they are: what was remembered of them is wrong now."""
        room = self._check.room
        if room.state.names or room.state.attributes:
            self._check.state.redraw(secret(self._rng))
            room.state.take()
            self._check.state.load()

    def _verify_timed(self, table: Table, number: int) -> None:
        """Hold what the timed call just made returned against the truth on the pool set that it was given."""
        left = self._take(wire.HoldTimed())
        timing.check_contents(table)
        self._check.state.require_kept()
        self._hold_to_truth(table, number, left)
        if not self._check.room.tight:
            for player in table.players:
                table.call(player)  # their memory is their own again when the next sample is taken

    def verify_row(self, table: Table, slot: int, number: int) -> None:
        """The same of a call in a row, when the judge's sets have caught up with the slots."""
        self._hold_to_truth(table, slot, self._take(wire.HoldTimed(number=number)))

    def _take(self, request: wire.HoldTimed) -> tuple[wire.Attribute, ...]:
        """Have what a timed call returned, and what it left of the state, in their places; and the plain values that it
        left."""
        check = self._check
        called = check.cell.ask(request, wire.Called, limit_s=check.room.limits.call_s)
        check.accept(called)
        check.fetch(tag=0, place=0)
        if check.state.moved:
            check.cell.do(wire.Store(tag=wire.LEFT, refs=self._check.room.state.after(check.state.moved)))
        return called.attributes

    def _hold_to_truth(self, table: Table, number: int, left: tuple[wire.Attribute, ...]) -> None:
        check, room = self._check, self._check.room
        for player in table.players:
            player.cell.do(wire.Drop())
        room.state.give()  # from which the call started
        trial = Trial(case=check.case, family="own", seed=secret(self._rng), redraw=0, draws=secret(self._rng))
        if room.described.random:
            self._drawn = self._drawn or draws.Timed(check, self._rng)
            self._drawn.hold(trial, k=number, left=left)
        elif check.usable(trial, room.truths.run(number, seed=trial.draws).exact):
            check.compare(trial, 0, " of a timed call", k=number)
            check.hold_state(trial, left, "a timed call")
