"""The timing of a checked candidate on one case: who plays, which calls are verified, what is said in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from ..edges.gpu.state import device_state, sickness
from ..edges.sandbox.strain import Gauge, Strain
from ..facts.errors import SickDevice, TooBusy
from ..facts.outcome import Checked, Launches, Phase, Timed
from .check.check import Check, concluded
from .client import Cell, CellFault
from .memory.case_memory import CaseMemory
from .memory.evictor import Evictor
from .memory.peak import peak_bytes
from .memory.sizes import evicts_all, flush_bytes
from .memory.stirring import Stirring
from .opened import OpenProblem
from .patience import needed
from .profile.origins import shares
from .stations import Stations
from .timing import measure as timing
from .timing.calls import Caller
from .timing.fresh import Fresh, check_fresh
from .timing.interleave import BurstSchedule, TimedSubject, TurnRedraw
from .timing.phases import measure_phases
from .timing.slope import check_slope
from .timing.turns import check_turns
from .verified_calls import VerifiedCalls
from .wire import messages as wire

EAGER = "eager"
OURS = "ours"
# What others' work beside it may make of an honest candidate.
_BY_CLOCKS = ("clock_disagrees", "works_aside", "works_between", "remembers")
_MANY = 0.1  # of the processors
_HIDDEN = 0.4  # of one processor
_FLOOR_UNDER_LOAD = (
    "others had the processors when this machine's peaks were measured, by which it is impossibly fast (`tilewright "
    "doctor` measures anew)"
)
_FEWEST_CALLS = 3  # in a burst, though there be fewer sets of inputs


@dataclass(slots=True, kw_only=True)
class CaseTiming:
    """One candidate in one room, beside its baselines. `check` has the candidate in hand."""

    opened: OpenProblem
    memory: CaseMemory
    check: Check
    compiled: Mapping[str, Cell]  # by the name of their times
    stations: Stations
    verified: VerifiedCalls = field(init=False)
    gauge: Gauge = field(init=False)

    def __post_init__(self) -> None:
        self.verified = VerifiedCalls(self.check, self.opened.rng)
        self.gauge = Gauge(needed(self.opened.machine))

    def run(self, checked: Checked, notes: Sequence[str]) -> Timed:
        """Raises Refused, Implausible, SickDevice, CellFault, and TooBusy where others' load may have made the verdict,
        for the candidate or against it."""
        try:
            timed = self._run(checked, notes)
            self._require_own_load_within_reason()
        except timing.Implausible as accused:
            self.gauge.look()
            reason = accused.failure.reason
            if reason in _BY_CLOCKS and self._starved:
                raise TooBusy(self.gauge.worst.told) from accused
            if reason == "implausible" and self.opened.machine.under_load:
                raise TooBusy(_FLOOR_UNDER_LOAD, lasts=True) from accused
            told = _of_others(self.gauge.worst) if reason in _BY_CLOCKS else ""
            accused.failure = replace(accused.failure, excerpt=told)
            raise
        self.gauge.look()
        if self._starved or (timed.undecided and self.gauge.worst.others > _MANY):
            raise TooBusy(self.gauge.worst.told)
        return timed

    def _require_own_load_within_reason(self) -> None:
        """Raise Implausible where nobody was seen to use what was used, and the candidate's processes come and go."""
        self.gauge.look()
        used = self.gauge.hidden
        if self.check.cell.usage.comes_and_goes and used > _HIDDEN:
            raise timing.Implausible(
                "works_aside",
                f"its processes come and go while others are timed, and what nobody was seen to use then amounts to "
                f"{used:.1f} processors: a load of its own is no excuse",
            )

    @property
    def _starved(self) -> bool:
        return self.gauge.starved(comes_and_goes=self.check.cell.usage.comes_and_goes)

    def _run(self, checked: Checked, notes: Sequence[str]) -> Timed:
        cell, work = self.check.cell, self.memory.described.work
        machine, effort, target = self.opened.machine, self.opened.effort(), self.opened.problem.target
        schedule = self.schedule()
        look = self.verified.look(schedule)
        with self._station("until processes rest"):
            timing.rest(dict.fromkeys(p.cell for p in schedule.subjects), longest_s=effort.rest_s)
        self.gauge.begin()
        cell.usage.watch_members()
        if machine.under_load:
            self.check.findings.note("the machine's peaks were measured under load: the floor may be too high")
        if effort.shortened:
            self.check.findings.note(
                f"timed for {effort.budget_s:.1f} s, as the budget ends: its interval is wider than it need be"
            )
        before = device_state(target)
        with self._station("timing"):
            timing.measure(schedule, schedule.subjects[0], effort=effort, look=look)
        after = device_state(target)  # at once: clocks and heat of the load, not of what follows
        if why := sickness(before, after):
            raise SickDevice(f"{machine.device}: {why}")
        with self._station("warm caches, clock check"):
            timing.measure_warm(schedule, schedule.subjects[0], effort=effort, look=look)
            timing.check_quiet(schedule)
            beside_ns = self._beside_ns(schedule)
            unseen = timing.check_clock(schedule, schedule.subjects[0], schedule.subjects[1])
        with self._station("calls in a row"):
            verify = partial(self.verified.verify_row, schedule)
            row_excess = check_slope(schedule, schedule.subjects[0], schedule.subjects[1], look=verify)
        fresh: Fresh | None = None
        if self.memory.described.inputs:
            with self._station("new contents"):
                fresh = check_fresh(
                    schedule, schedule.subjects[0], schedule.subjects[1], renew=self.verified.renew, look=look,
                    quick=look,
                )  # fmt: skip
        phases: tuple[Phase, ...] = ()
        if self.memory.described.gradients.outputs:
            with self._station("forward and backward apart"):
                phases = measure_phases(
                    schedule, ours=OURS, names=(OURS, EAGER, *self.compiled), rounds=effort.min_rounds
                )
        counted = cell.ask(wire.CountFallbacks(), wire.Fallbacks, limit_s=30.0)
        for note in notes:
            self.check.findings.note(note)
        with self._station("whose kernels"):
            seen = self._profile()
            peaks = self._peaks(schedule.subjects)
        checked = replace(
            concluded(checked.built, self.check.findings, counted.counts), time_shares=shares(seen.spent, target)
        )
        schedule.bursts[OURS] = [tuple(ns + beside_ns for ns in burst) for burst in schedule.bursts[OURS]]
        timed = timing.summarise(checked, schedule, ours=OURS, machine=machine, work=work)
        mine = timed.time(OURS)
        assert mine is not None
        timing.check_floor(machine, work, mine)
        timed = replace(
            timed, stations=self.stations.found, unseen_ns=unseen, row_excess_ns=row_excess,
            new_excess_ns=fresh.extra_ns if fresh else None, undecided=not (fresh is None or fresh.decided),
            phases=phases, peak_bytes=peaks, device=(before, after),
            launches=Launches(count=seen.launches, cost_ns=seen.launch_ns) if seen.launches else None,
        )  # fmt: skip
        return self.opened.modes.against_fastest(timed)

    def _beside_ns(self, schedule: BurstSchedule) -> float:
        """What the candidate does between its calls, beyond eager: it is made a part of its calls."""
        added_ns = check_turns(
            schedule, schedule.subjects[0], schedule.subjects[1], threads=self.check.cell.plan.threads
        )
        if added_ns:
            self.check.findings.note(
                f"between its calls it works for {added_ns / 1e3:.0f} us beyond what eager's process does there: that "
                "was added to the time of each call with cold caches"
            )
        return added_ns

    @contextmanager
    def _station(self, name: str) -> Iterator[None]:
        with self.stations.station(name, self.opened.reference, *self.compiled.values(), candidate=self.check.cell):
            yield
        self.gauge.look()

    def schedule(self) -> BurstSchedule:
        """All subjects before slots that are filled: ours, eager, eager again, torch.compile in each mode."""
        self.verified.fill()
        ours = TimedSubject(OURS, self.check.cell, moved=self.check.state.moved, attributes=self.check.state.attributes)
        subjects = [ours, *(subject_of(self.memory, name, self.opened.reference) for name in (EAGER, timing.AA))]
        subjects += [subject_of(self.memory, name, cell) for name, cell in self.compiled.items()]
        inputs = self.memory.sets.inputs(0)
        stirring = Stirring(inputs, slots=self.memory.pool, rng=self.opened.rng)
        if not stirring.changes_rows:
            self.check.findings.note("inputs of this structure can't be stirred: timed calls saw few sets of contents")
        evictor = Evictor(flush_bytes(self.opened.machine), self.memory.device)
        if not evicts_all(evictor.flush_bytes, self.opened.machine):
            self.check.findings.note(
                "memory is too short to evict all of the caches: some timed calls may find them warm"
            )
        calls = Caller(
            self.memory, self.opened.rng, evictor=evictor, stirring=stirring,
            row_stirring=Stirring(inputs, slots=self.memory.slots, rng=self.opened.rng),
        )  # fmt: skip
        return BurstSchedule(
            calls, subjects=subjects, fresh=self.verified.draw_anew,
            redraw=TurnRedraw(change=self.verified.redraw, calm=self.check.state.put_back), watched=self.check.cell,
            most_calls=min(self.opened.options.effort.most_calls, max(self.memory.pool, _FEWEST_CALLS)),
        )  # fmt: skip

    def _peaks(self, subjects: Sequence[TimedSubject]) -> tuple[tuple[str, int], ...]:
        """Memory at the peak of one call, by implementation, where it can be had."""
        request = wire.Peak(args=self.memory.described.args, inputs=self.memory.sets.slot(0))
        others = [p for p in subjects if p.name != timing.AA]
        found = ((p.name, peak_bytes(p.cell, request, limit_s=self.memory.limits.call_s)) for p in others)
        return tuple((name, size) for name, size in found if size >= 0)

    def _profile(self) -> wire.Profiled:
        """What a call spends its time in. Comes last: a profiler may slow down what follows it. That it fails
        says nothing of the candidate."""
        request = wire.Profile(args=self.memory.described.args, inputs=self.memory.sets.slot(0))
        try:
            return self.check.cell.ask(request, wire.Profiled, limit_s=self.memory.limits.call_s)
        except CellFault as fault:
            self.check.findings.note(f"whose kernels the time is spent in was not seen: {fault.summary}")
            return wire.Profiled(spent=())


def subject_of(memory: CaseMemory, name: str, cell: Cell) -> TimedSubject:
    """A cell that runs the module itself."""
    described = memory.described
    return TimedSubject(
        name, cell, moved=described.mutated_state, attributes=tuple(a.name for a in described.attributes)
    )


def _of_others(strain: Strain) -> str:
    """What a reader needs to know of a machine that was busy while clocks were compared."""
    if strain.others < _MANY:
        return ""
    return (
        f"{strain.told}, which can look like work of the candidate's: if that is not what it does, have it judged "
        "again where nothing else runs"
    )
