"""Timing: a checked candidate against its baselines, in turn, until the ratio is known well enough or time is up.

What the candidate returned in randomly chosen timed calls is compared with the truth, on parameters re-drawn
half-way; the ticks of its cell are held against the judge's own wall clock; a time that the hardware can't reach is
refused.
"""

from __future__ import annotations

import statistics as plain
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec

from ...facts.machine import Machine
from ...facts.outcome import LEAST_GAIN, Checked, Failure, Interval, Samples, Timed
from ...facts.problem import Work
from ..client import Cell
from . import statistics
from .interleave import MOST_CALLS, BurstSchedule, TimedSubject, VerifiedLook, warm

AA = "eager_again"
_CLOCK_SLACK = 0.1  # of a call, may pass outside the timed region
CLOCK_SLACK_S = {"cpu": 100e-6, "cuda": 20e-6}  # a call: two processes answer not equally fast
_CLOCK_ROUNDS, _CLOCK_TRIALS = (12, 24, 36), 3  # the more where noise leaves a doubt
_DOUBTFUL_LOOKS = 4  # numbers of rounds after which a suspicion that noise may have raised is looked at again
_ASIDE_SHARE, _ASIDE_S = 0.25, 0.1  # of one processor; and at least so much in all
_REST_WINDOW_S = 0.1
# By how much two processes may differ for good that run the same code: where code, weights and page tables lie costs
# more or less when all caches are cold. One H200, 2026-11-20, layer norm and GELU of 512 x 1024 against itself: 13.0
# and 13.8 us cold, 11.5 and 11.5 us warm, each within 0.1 us over all rounds.
_RESOLUTION_NS = {"cpu": 2000.0, "cuda": 1500.0}
_PATIENCE = 4  # budgets, and rounds, where it is not known yet whether there is a gain
_WORTH_WAITING = 0.05  # such a gain at least must still be possible
_LOOK_SHARE = 0.25  # of the budget, for more verified calls than were asked for
_LATE_LOOKS = 0.125  # of the rounds after that, in which a call is verified all the same
P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """When to stop: `tight` relative half-width of every ratio's interval, or `budget_s`; between the given
    rounds. A burst has `most_calls` at most, and `rest_s` is how long busy processes are waited for."""

    tight: float = 0.01
    budget_s: float = 6.0
    min_rounds: int = 8
    max_rounds: int = 60
    verified: int = 2  # rounds with a verified timed call, at least
    warm_rounds: int = 8
    most_calls: int = MOST_CALLS
    rest_s: float = 15.0
    shortened: bool = False  # the budget is less than was asked for: it is not exceeded, whatever noise may hide

    def within(self, seconds: float) -> Effort:
        """The same, or one that ends after these seconds."""
        if seconds >= self.budget_s:
            return self
        return replace(self, budget_s=seconds, rest_s=min(self.rest_s, seconds), shortened=True)


class Implausible(Exception):
    """The timing of the candidate can't be believed; `failure` says why."""

    def __init__(self, reason: str, summary: str) -> None:
        super().__init__(summary)
        self.failure = Failure(stage="timing", reason=reason, summary=summary)


def rest(cells: Iterable[Cell], *, longest_s: float) -> None:
    """Wait until the cells' processes hardly use a processor: a compiler that the first calls started (inductor's pool
    of workers imports torch for seconds) would disturb whoever is timed. Who never rests is accused of it later."""
    started = time.monotonic()
    waiting = list(cells)
    while waiting and time.monotonic() - started < longest_s:
        before_s = [cell.usage.cpu_s() for cell in waiting]
        time.sleep(_REST_WINDOW_S)
        used_s = [cell.usage.cpu_s() - before for cell, before in zip(waiting, before_s, strict=True)]
        waiting = [c for c, used in zip(waiting, used_s, strict=True) if used > _ASIDE_SHARE * _REST_WINDOW_S]


def measure(schedule: BurstSchedule, ours: TimedSubject, *, effort: Effort, look: VerifiedLook) -> None:
    """Fill the table's bursts. `look` verifies one random call of the candidate in the rounds that are chosen for it:
    as many as `effort` asks for, and more while they take little of the budget."""
    schedule.warm_up()
    started, redrawn_s = time.monotonic(), schedule.redraw.spent_s
    watch = _Watch(look)
    chosen = set(schedule.rng.sample(range(effort.min_rounds), effort.verified)) if effort.verified else set()
    for number in range(_PATIENCE * effort.max_rounds):
        looking = number in chosen or watch.spent_s < _LOOK_SHARE * effort.budget_s
        looking = looking or schedule.rng.random() < _LATE_LOOKS
        schedule.round({ours.name: watch.look} if looking else None)
        spent_s = time.monotonic() - started - watch.spent_s - (schedule.redraw.spent_s - redrawn_s)
        if _enough(schedule, ours, effort, spent_s):
            return


def _enough(schedule: BurstSchedule, ours: TimedSubject, effort: Effort, spent_s: float) -> bool:
    """Whether the ratios are known well enough, or time is up: the budget, or several where a gain may still be hidden
    in the noise. Asked after few numbers of rounds alone: an interval that is looked at often clears 1 by chance."""
    rounds = len(schedule.bursts[ours.name])
    if spent_s > (1 if effort.shortened else _PATIENCE) * effort.budget_s:
        return rounds >= effort.min_rounds
    if rounds not in (effort.min_rounds, *statistics.LOOKS):
        return False
    mine = schedule.bursts[ours.name]
    ratios = [statistics.ratio_interval(b, mine) for name, b in schedule.bursts.items() if name not in (ours.name, AA)]
    if all(statistics.half_width(r) < effort.tight for r in ratios):
        return True
    hidden = any(r.low <= 1 + LEAST_GAIN and r.high > 1 + _WORTH_WAITING for r in ratios)
    return (spent_s > effort.budget_s or rounds >= effort.max_rounds) and not hidden


class _Watch:
    """A look whose time is counted apart."""

    def __init__(self, look: VerifiedLook) -> None:
        self.spent_s = 0.0
        self.look = VerifiedLook(self._counted(look.after))

    def _counted(self, act: Callable[P, None]) -> Callable[P, None]:
        def counted(*args: P.args, **kwargs: P.kwargs) -> None:
            started = time.monotonic()
            act(*args, **kwargs)
            self.spent_s += time.monotonic() - started

        return counted


def measure_warm(schedule: BurstSchedule, ours: TimedSubject, *, effort: Effort, look: VerifiedLook) -> None:
    """A few rounds with warm caches, with a verified call of the candidate in some of them."""
    chosen = set(schedule.rng.sample(range(effort.warm_rounds), min(effort.verified, effort.warm_rounds)))
    for number in range(effort.warm_rounds):
        _warm_round(schedule, {ours.name: look} if number in chosen else {})


def _warm_round(schedule: BurstSchedule, looks: Mapping[str, VerifiedLook]) -> None:
    schedule.renew_contents()
    for subject in schedule.shuffled([p for p in schedule.subjects if p.name != AA]):
        schedule.burst(subject, calls=schedule.calls[subject.name], cold=False, look=looks.get(subject.name))


def check_contents(schedule: BurstSchedule) -> None:
    """Raise Implausible unless what was shown last still holds what the judge knows to have been put there."""
    changed = schedule.timed.changed_input()
    if changed >= 0:
        raise Implausible(
            "input_modified",
            f"while it was timed, tensor input {changed} did not hold what the judge had put there: it was changed, "
            "or new contents were kept out",
        )


def check_clock(schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject) -> Interval:
    """The candidate's ticks against the judge's own clock. What that sees of a call beyond its tick (the request, the
    stirring, the caches) is the same for eager in the same rounds; what is more than that, by the whole interval, was
    hidden. Gives the excess with warm caches, where least disturbs it, in ns a call."""
    _require_honest(schedule, ours, eager, cold=True)
    excess_s = _require_honest(schedule, ours, eager, cold=False)
    return Interval(low=excess_s.low * 1e9, mid=excess_s.mid * 1e9, high=excess_s.high * 1e9)


def check_quiet(schedule: BurstSchedule) -> None:
    """What the candidate's processes do in others' turns is work put aside, or disturbs whoever it is compared with."""
    if schedule.aside_s > _ASIDE_SHARE * schedule.others_s and schedule.aside_s > _ASIDE_S:
        raise Implausible(
            "works_aside",
            f"its processes used {schedule.aside_s:.2f} s of processor time in {schedule.others_s:.2f} s in which "
            "others were timed",
        )


def _require_honest(schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject, *, cold: bool) -> Interval:
    """At least as many rounds as an interval takes, and more where it holds both what may be and what may not."""
    name, other = (ours.name, eager.name) if cold else (warm(ours.name), warm(eager.name))
    for rounds in statistics.LOOKS[:_DOUBTFUL_LOOKS]:
        while len(schedule.unseen.get(name, ())) < rounds:
            _play(schedule, cold=cold)
        if not _doubtful(schedule, name, other):
            break
    if _hidden(schedule, name, other):
        return _require_confirmed(schedule, ours, eager, cold=cold)
    return _excess_s(schedule.unseen, name, other)


def _require_confirmed(schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject, *, cold: bool) -> Interval:
    """What speaks against the candidate must be seen each time that it is looked for anew, and against eager's calls
    repeated until they take as long: on a busy machine, whoever has computed for longer waits longer to go on."""
    name, other = (ours.name, eager.name) if cold else (warm(ours.name), warm(eager.name))
    subjects = ours, eager.as_long(said_s(schedule, name) / said_s(schedule, other))
    calls = {p.name: schedule.calls[ours.name] for p in subjects}
    for _ in range(_CLOCK_TRIALS):
        again = schedule.anew(subjects, calls)
        for rounds in _CLOCK_ROUNDS:
            while len(again.unseen.get(name, ())) < rounds:
                _play(again, cold=cold)
            if not _doubtful(again, name, other):
                break
        check_quiet(again)
        hidden = _hidden(again, name, other)
        if not hidden:
            return _excess_s(again.unseen, name, other)
    raise Implausible(
        "clock_disagrees",
        f"by its own clock a call takes {said_s(again, name) * 1e6:.1f} us; {hidden}: work is done outside the timed "
        "region",
    )


def _doubtful(schedule: BurstSchedule, name: str, other: str) -> bool:
    """Whether more is seen of one's calls than may be, and so little of it that it may be noise."""
    excess_s = _excess_s(schedule.unseen, name, other)
    return excess_s.low <= clock_slack_s(schedule, name) < excess_s.mid


def _hidden(schedule: BurstSchedule, name: str, other: str) -> str:
    """What was seen of a call beyond its tick that is more than eager's and than may be; "" where nothing was. A busy
    machine may drown what the judge's clock sees, less what the device itself tells."""
    slack_s = clock_slack_s(schedule, name)
    seen, after = (_excess_s(found, name, other) for found in (schedule.unseen, schedule.after))
    if seen.low > slack_s:
        return f"the judge's clock sees {seen.mid * 1e6:.1f} us more of it than of eager's calls"
    if after.low > slack_s:
        return f"the device works on for {after.mid * 1e6:.1f} us longer than after eager's calls"
    return ""


def _play(schedule: BurstSchedule, *, cold: bool) -> None:
    if cold:
        schedule.round()
    else:
        _warm_round(schedule, {})


def _excess_s(seen: Mapping[str, Sequence[Sequence[float]]], name: str, other: str) -> Interval:
    """By how much more was seen of one's calls than of the other's, over the rounds."""
    pairs = zip(seen[name], seen[other], strict=True)
    return statistics.median_interval([plain.median(mine) - plain.median(theirs) for mine, theirs in pairs])


def clock_slack_s(schedule: BurstSchedule, name: str) -> float:
    """What may pass outside the timed region of a call: an older result's memory is given back, a pool of threads goes
    to sleep."""
    return _CLOCK_SLACK * said_s(schedule, name) + CLOCK_SLACK_S[schedule.memory.device]


def said_s(schedule: BurstSchedule, name: str) -> float:
    return plain.median(plain.median(b) for b in schedule.bursts[name]) / 1e9


def check_floor(machine: Machine, work: Work, time_ns: Interval) -> None:
    impossible_ns = machine.impossible_ns(work)
    if time_ns.mid < impossible_ns:
        per_ns = 1e9 / time_ns.mid
        raise Implausible(
            "implausible",
            f"{time_ns.mid / 1e3:.1f} us a call would be {_rate(work.bytes_moved * per_ns, 'B/s')} for "
            f"{work.bytes_moved / 1e6:.1f} MB and {_rate(work.flops * per_ns, 'FLOP/s')} for "
            f"{work.flops / 1e9:.2f} GFLOP; measured here were {_rate(machine.copy_bytes_per_s, 'B/s')} and "
            f"{_rate(machine.rate(work.dtype), 'FLOP/s')}, which leave {impossible_ns / 1e3:.1f} us at least",
        )


def _rate(per_s: float, unit: str) -> str:
    return f"{per_s / 1e12:.2f} T{unit}" if per_s >= 1e11 else f"{per_s / 1e9:.2f} G{unit}"


def summarise(checked: Checked, schedule: BurstSchedule, *, ours: str, machine: Machine, work: Work) -> Timed:
    bursts = {name: tuple(found) for name, found in schedule.bursts.items()}
    baselines = [p.name for p in schedule.subjects if p.name not in (ours, AA)]
    ratios = [(n, statistics.ratio_interval(bursts[n], bursts[ours])) for n in baselines]
    ratios += [
        (warm(n), statistics.ratio_interval(bursts[warm(n)], bursts[warm(ours)]))
        for n in baselines
        if warm(n) in bursts
    ]
    if AA in bursts:
        ratios.append(("aa", statistics.ratio_interval(bursts["eager"], bursts[AA])))
    return Timed(
        checked=checked, times_ns=tuple((n, statistics.time_interval(b)) for n, b in bursts.items()),
        ratios=tuple(ratios), samples=tuple(Samples(name=n, bursts_ns=b) for n, b in bursts.items()),
        floor_ns=machine.floor_ns(work), resolution_ns=_RESOLUTION_NS[schedule.memory.device],
        bytes_moved=work.bytes_moved, flops=work.flops,
    )  # fmt: skip
