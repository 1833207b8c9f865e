"""The tuning of a candidate on the first case: each point of a pattern is set, verified by one call, and timed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.outcome import Failure, PointTime, Tuned
from ..facts.space import Point
from .build.build import build, failure
from .check.check import Check, RefusedByCheck
from .check.plan import Trial, secret
from .client import Cell, CellFault
from .memory.case_memory import CaseMemory
from .memory.evictor import Evictor
from .memory.sizes import check_memory_sizes, flush_bytes
from .opened import OpenProblem, is_ours
from .time_case import EAGER, OURS, subject_of
from .timing.calls import Caller
from .timing.interleave import BurstSchedule, TimedSubject
from .timing.sweep import TunedSubject, one_each, sweep
from .wire import messages as wire

_TUNED = 0.6  # of the run's time, until which points are measured


def tuned(
    opened: OpenProblem, candidate: Candidate, pattern: str, points: Sequence[Point], *, compiled: Sequence[Path]
) -> Tuned | Failure:
    """Times of all points; one at which the cell dies is recorded, and the others go on in a new cell. Raises TooBusy
    where others keep the processors."""
    dead: dict[Point, str] = {}
    while living := [p for p in points if p not in dead]:
        trying: list[Point] = []
        with opened.candidate_cell(compiled) as cell:
            built = build(candidate, cell, limit_s=opened.options.limits.build_s, compiled=compiled)
            if isinstance(built, Failure):
                return built
            try:
                with opened.harness_fault(cell):
                    times = _tuned_in(opened, cell, pattern, living, trying)
                return Tuned(points=one_each(points, times, dead))
            except CellFault as fault:
                if not trying:
                    return failure("tune", fault)
                dead[trying[-1]] = str(fault)[:500]
    return Tuned(points=one_each(points, (), dead))


def _tuned_in(
    opened: OpenProblem, cell: Cell, pattern: str, points: Sequence[Point], trying: list[Point]
) -> tuple[PointTime, ...]:
    """Raises CellFault when the cell fails for good; `trying` grows by each point that is set."""
    if opened.problem.target == "cpu":
        opened.cells.baseline.settle()  # its compiler would share the processors with what is timed
    opened.cells.spares.settle()
    case = opened.cases[0]
    with opened.turns.turn("tuning"), opened.memories.memory(case, sizes=check_memory_sizes) as memory:
        opened.patience.begin()
        return _Tuning(opened, memory, opened.check(memory, cell, case), pattern, trying).run(points)


@dataclass(frozen=True, slots=True)
class _Tuning:
    """One candidate in one room, beside eager. `check` has the candidate in hand."""

    opened: OpenProblem
    memory: CaseMemory
    check: Check
    pattern: str
    trying: list[Point]

    def run(self, points: Sequence[Point]) -> tuple[PointTime, ...]:
        opened, memory, check = self.opened, self.memory, self.check
        memory.admit(check.cell)
        check.state.construct(opened.cases[0].seed)
        memory.state.take()
        check.state.load()
        inputs, draws = secret(opened.rng), secret(opened.rng)
        trial = Trial(case=check.case, family="own", seed=inputs, redraw=0, draws=draws)
        memory.sets.draw(0, family="own", seed=trial.seed)
        check.usable(trial, memory.truths.run(0, seed=trial.draws).exact)
        for slot in range(memory.slots):
            memory.sets.place(0, slot)
        evictor = Evictor(flush_bytes(opened.machine), memory.device)
        schedule = BurstSchedule(Caller(memory, opened.rng, evictor=evictor), subjects=[])
        opened.patience.require("tuning", comes_and_goes=check.cell.usage.comes_and_goes)
        ours = TimedSubject(OURS, check.cell, moved=check.state.moved, attributes=check.state.attributes)
        anchor = subject_of(memory, EAGER, opened.reference)
        return sweep(schedule, TunedSubject(ours, anchor, partial(self._set_point, trial)), points, self._is_over)

    def _is_over(self) -> bool:
        """Whether what is left of the run's time is wanted for judging what was tuned."""
        return self.opened.options.time.left_s(_TUNED) <= 0

    def _set_point(self, trial: Trial, point: Point) -> str:
        """Configure the candidate and, where the point is set for the first time, verify one call; why the point does
        not work, or ""."""
        check, known = self.check, point in self.trying
        self.trying.append(point)
        try:
            request = wire.Configure(pattern=self.pattern, knobs=json.dumps(dict(point)))
            check.cell.do(request, limit_s=self.memory.limits.call_s)
            if not known:
                check.call(tag=0, slot=0, place=0, seed=trial.draws)
                check.compare(trial, 0)
        except RefusedByCheck as refused:
            return f"{refused.failure.reason}: {refused.failure.summary}"[:500]
        except CellFault as fault:
            if is_ours(fault, check.cell) or not check.cell.alive:
                raise
            return str(fault)[:500]
        return ""
