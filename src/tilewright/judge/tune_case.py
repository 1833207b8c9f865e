"""The tuning of a candidate on one case: each point of a pattern is set, verified by one call, and timed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..facts.machine import Machine
from ..facts.outcome import PointTime
from ..facts.space import Point
from .cells import PointFault
from .check.check import Check, Refused
from .check.plan import Trial, secret
from .client import Cell, CellFault, Limits
from .memory.evictor import Evictor
from .memory.room import Room
from .memory.sizes import flush_bytes
from .patience import Patience
from .rooms import Case
from .time_case import EAGER, OURS, player_of
from .timing.interleave import Player, Table
from .timing.sweep import Contender, sweep
from .wire import messages as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTuning:
    """One candidate in one room, beside eager. `check` has the candidate in hand; `is_ours`: whether a fault is not the
    candidate's."""

    room: Room
    check: Check
    case: Case
    reference: Cell
    machine: Machine
    limits: Limits
    rng: random.Random
    patience: Patience
    is_ours: Callable[[CellFault], bool]

    def run(self, pattern: str, points: Sequence[Point], trying: list[Point]) -> tuple[PointTime, ...]:
        """Times of the points; `trying` grows by each that is set. Raises PointFault when the cell fails for good, and
        TooBusy where others keep the processors."""
        try:
            return self._run(pattern, points, trying)
        except CellFault as fault:
            if self.is_ours(fault):
                raise
            raise PointFault(fault) from fault

    def _run(self, pattern: str, points: Sequence[Point], trying: list[Point]) -> tuple[PointTime, ...]:
        room, check = self.room, self.check
        room.admit(check.cell)
        check.construct(self.case.seed)
        room.state.take()
        check.load_state()
        inputs, draws = secret(self.rng), secret(self.rng)
        trial = Trial(case=self.case.number, family="own", seed=inputs, redraw=0, draws=draws)
        room.draw(0, family="own", seed=trial.seed)
        check.usable(trial, room.truths.run(0, seed=trial.draws).exact)
        for slot in range(room.slots):
            room.place(0, slot)
        table = Table(room=room, players=[], rng=self.rng, evictor=Evictor(flush_bytes(self.machine), room.device))
        self.patience.require("tuning", comes_and_goes=check.cell.usage.comes_and_goes)
        ours = Player(OURS, check.cell, moved=check.moved, attributes=check.attributes)
        set_point = partial(self._set_point, trial, pattern, trying)
        return sweep(table, Contender(ours, player_of(room, EAGER, self.reference), set_point), points)

    def _set_point(self, trial: Trial, pattern: str, trying: list[Point], point: Point) -> str:
        """Configure the candidate and, where the point is set for the first time, verify one call; why the point does
        not work, or ""."""
        check, known = self.check, point in trying
        trying.append(point)
        try:
            request = wire.Configure(pattern=pattern, knobs=json.dumps(dict(point)))
            check.cell.do(request, limit_s=self.limits.call_s)
            if not known:
                check.call(tag=0, slot=0, place=0, seed=trial.draws)
                check.compare(trial, 0)
        except Refused as refused:
            return f"{refused.failure.reason}: {refused.failure.summary}"[:500]
        except CellFault as fault:
            if self.is_ours(fault) or not check.cell.alive:
                raise
            return str(fault)[:500]
        return ""
