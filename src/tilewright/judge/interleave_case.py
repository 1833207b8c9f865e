"""Candidates timed in turns on the first case: each in a process of its own, in the same rounds, beside eager."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..facts.candidate import Candidate
from ..facts.outcome import LEAST_GAIN, Failure, Interleaved, Interval, VariantTime
from .build.build import build
from .check.check import Check, RefusedByCheck
from .check.plan import Trial, secret
from .client import CellFault
from .memory.case_memory import CaseMemory
from .memory.evictor import Evictor
from .memory.sizes import check_memory_sizes, flush_bytes
from .opened import OpenProblem, is_ours
from .time_case import EAGER, subject_of
from .timing import statistics
from .timing.calls import Caller
from .timing.interleave import BurstSchedule, TimedSubject

MOST_VARIANTS = 4  # processes at once, beside the reference's
_MOST_ROUNDS = 36


def interleaved(opened: OpenProblem, candidates: Sequence[Candidate]) -> Interleaved:
    """Times of at most MOST_VARIANTS candidates. Each is checked by one call; what fails is told of, and the others go
    on. Raises TooBusy where others keep the processors."""
    dead: dict[int, str] = {}
    while True:
        try:
            return _once(opened, candidates[:MOST_VARIANTS], dead)
        except _Died as died:  # its process is gone, and with it the round: the others begin anew
            dead[died.number] = str(died)[:500]


class _Died(Exception):
    """A candidate's process failed while all were timed."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


def _once(opened: OpenProblem, candidates: Sequence[Candidate], dead: dict[int, str]) -> Interleaved:
    if opened.problem.target == "cpu":
        opened.cells.baseline.settle()  # its compiler would share the processors with what is timed
    opened.cells.spares.settle()
    case = opened.cases[0]
    with ExitStack() as cells:
        built = {n: cells.enter_context(opened.candidate_cell()) for n in range(len(candidates)) if n not in dead}
        failures = dict(dead)
        for number, cell in tuple(built.items()):
            found = build(candidates[number], cell, limit_s=opened.options.limits.build_s)
            if isinstance(found, Failure):
                failures[number] = f"{found.reason}: {found.summary}"
                del built[number]
        with opened.turns.turn("timing in turns"), opened.memories.memory(case, sizes=check_memory_sizes) as memory:
            opened.patience.begin()
            checks = {n: opened.check(memory, cell, case) for n, cell in built.items()}
            times = _Turns(opened, memory, checks, failures).run()
    return Interleaved(variants=tuple(_told(n, times, failures) for n in range(len(candidates))))


@dataclass(frozen=True, slots=True)
class _Turns:
    """Candidates in one case memory. `failures` by number, of those that can't be timed."""

    opened: OpenProblem
    memory: CaseMemory
    checks: dict[int, Check]
    failures: dict[int, str]

    def run(self) -> dict[int, tuple[Interval, Interval]]:
        """By number, the time and the first one's ratio to it."""
        memory, opened = self.memory, self.opened
        memory.state.take()
        inputs, draws = secret(opened.rng), secret(opened.rng)
        trial = Trial(case=0, family="own", seed=inputs, redraw=0, draws=draws)
        memory.sets.draw(0, family="own", seed=trial.seed)
        exact = memory.truths.run(0, seed=trial.draws).exact
        for slot in range(memory.slots):
            memory.sets.place(0, slot)
        right = {n: check for n, check in self.checks.items() if self._is_right(n, check, trial, exact)}
        if 0 not in right or len(right) < 2:
            return {}
        subjects = {
            n: TimedSubject(f"variant {n}", c.cell, moved=c.state.moved, attributes=c.state.attributes)
            for n, c in right.items()
        }
        schedule = BurstSchedule(
            Caller(memory, opened.rng, evictor=Evictor(flush_bytes(opened.machine), memory.device)),
            subjects=[*subjects.values(), subject_of(memory, EAGER, opened.reference)],
        )
        comes_and_goes = any(check.cell.usage.comes_and_goes for check in right.values())
        opened.patience.require("timing in turns", comes_and_goes=comes_and_goes)
        for subject in schedule.subjects:
            with self._blaming(subject):
                schedule.warm_up([subject])
        self._play(schedule, [s.name for s in subjects.values()])
        bursts = schedule.bursts
        first = bursts[subjects[0].name]
        return {
            n: (statistics.time_interval(bursts[s.name]), statistics.ratio_interval(first, bursts[s.name]))
            for n, s in subjects.items()
        }

    def _is_right(self, number: int, check: Check, trial: Trial, exact: bool) -> bool:
        """Whether one call is; `failures` says why not. The memory holds the inputs in slot 0 and their truth."""
        try:
            self.memory.admit(check.cell)
            check.state.construct(self.opened.cases[0].seed)
            check.state.load()
            check.usable(trial, exact)
            check.call(tag=0, slot=0, place=0, seed=trial.draws)
            check.compare(trial, 0)
        except RefusedByCheck as refused:
            self.failures[number] = f"{refused.failure.reason}: {refused.failure.summary}"
        except CellFault as fault:
            if not is_ours(fault, check.cell):
                self.failures[number] = str(fault)
            else:
                raise
        return number not in self.failures

    def _play(self, schedule: BurstSchedule, names: Sequence[str]) -> None:
        """Rounds until all that can be told apart is, asked after few numbers of them alone."""
        for rounds in statistics.LOOKS:
            while len(schedule.bursts[names[0]]) < rounds:
                schedule.renew_contents()
                for subject in schedule.shuffled(schedule.subjects):
                    with self._blaming(subject):
                        schedule.burst(subject, calls=schedule.calls[subject.name])
            ratios = [statistics.ratio_interval(schedule.bursts[names[0]], schedule.bursts[n]) for n in names[1:]]
            if rounds >= _MOST_ROUNDS or all(map(is_decided, ratios)):
                return

    @contextmanager
    def _blaming(self, subject: TimedSubject) -> Iterator[None]:
        """A fault of the candidate whose turn it is raises _Died."""
        try:
            yield
        except CellFault as fault:
            number = next((n for n, check in self.checks.items() if check.cell is subject.cell), None)
            if number is None or is_ours(fault, subject.cell):
                raise
            raise _Died(number, str(fault)) from fault


def is_decided(ratio: Interval) -> bool:
    """Whether one of the two is faster beyond noise, or they are equal for every purpose."""
    within = ratio.low > 1 - LEAST_GAIN and ratio.high < 1 + LEAST_GAIN
    return ratio.low > 1 + LEAST_GAIN or ratio.high < 1 - LEAST_GAIN or within


def _told(number: int, times: dict[int, tuple[Interval, Interval]], failures: dict[int, str]) -> VariantTime:
    if number in times:
        time, ratio = times[number]
        return VariantTime(time_ns=time, ratio=ratio)
    why = failures.get(number, "not timed: the first, which it is held against, did not run, or it is alone")
    return VariantTime(time_ns=None, ratio=None, failure=why[:500])
