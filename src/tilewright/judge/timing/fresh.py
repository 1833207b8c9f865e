"""New contents: whether a call is dearer where they are new as a whole than where a part of them has changed."""

from __future__ import annotations

import math
import statistics as plain
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from ...facts.outcome import Interval
from ..wire import messages as wire
from . import statistics
from .interleave import SETTLE_S, BurstSchedule, TimedSubject, VerifiedLook
from .measure import CLOCK_SLACK_S, Implausible, said_s

_KEPT_SHARE = 0.25  # of a call, may be saved where contents are new in part alone
_FRESH_ROUNDS = 3  # which are enough where nothing speaks against the candidate
_MORE_FRESH_ROUNDS = (12, 24, 36, 60, 84, 120)  # which may decide, in blocks: the more where noise leaves a doubt
_ACCUSATIONS = 2  # each of rounds of its own, until a candidate is refused for what it kept
_CLEARED = 2.0  # of what may be, is not reached by the interval of who is known to keep nothing
_CALM = 0.8  # eager's two calls are at least so much alike where nothing disturbs them

Renew = Callable[[int, bool], None]  # fills a slot with contents that were never there; if told to, with the last again


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """By how much a call is dearer on new contents than eager's calls let expect, and whether noise left a doubt of it
    to the end."""

    extra_ns: Interval
    decided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _FreshRound:
    """How long calls took where contents were new as a whole, and in part: the candidate's, and eager's."""

    fresh_ns: float
    part_ns: float
    eager_fresh_ns: float
    eager_part_ns: float

    @property
    def expected(self) -> float:
        return self.eager_part_ns / self.eager_fresh_ns

    @property
    def extra_ns(self) -> float:
        """By how much longer the candidate's call took on new contents than eager's let expect."""
        return self.fresh_ns * self.expected - self.part_ns

    @property
    def steady(self) -> bool:
        return _CALM < self.expected < 1 / _CALM


def check_fresh(
    schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject, *, renew: Renew, look: VerifiedLook,
    quick: VerifiedLook | None = None,
) -> Fresh:  # fmt: skip
    """A call on contents that are new as a whole, and then one where a part of them has changed, in turn with eager's.
    A candidate for which the first is the dearer one works on what it kept of earlier calls, where a user's do not
    repeat. `look` verifies one of the calls. Where a few rounds leave a doubt, others decide in which both calls come
    after the same work of the judge's: a process that has slept for longer launches its kernels more slowly. There the
    quickest calls count, so `quick` verifies each that is quicker than those before it. Gives by how many ns the first
    is dearer than eager's calls let expect: of few rounds their least, median and most."""
    looking, said_ns = schedule.rng.randrange(_FRESH_ROUNDS), said_s(schedule, ours.name) * 1e9
    redrawn = schedule.rng.randrange(_FRESH_ROUNDS)  # of no account to which of the calls is looked at
    seen: list[_FreshRound] = []
    for number in range(_FRESH_ROUNDS):
        if number == redrawn:
            schedule.redraw.renew()
        seen.append(_fresh_round(schedule, ours, eager, renew, look if number == looking else None))
    schedule.redraw.calm()
    (low_ns, mid_ns, high_ns), least_ns = sorted(r.extra_ns for r in seen), _fresh_slack_ns(schedule, seen, said_ns)
    if all(r.steady for r in seen) and -_CLEARED * least_ns <= low_ns and high_ns <= least_ns:
        return Fresh(extra_ns=Interval(low=low_ns, mid=mid_ns, high=high_ns), decided=True)
    seen, looking, accused = [], schedule.rng.randrange(_MORE_FRESH_ROUNDS[0]), 0
    while True:
        record = quick and replace(quick, below_ns=min((r.fresh_ns for r in seen), default=math.inf))
        seen.append(_fresh_round(schedule, ours, eager, renew, look if len(seen) == looking else record, careful=True))
        if len(seen) in _MORE_FRESH_ROUNDS:
            blocks = _quickest(seen)
            extra_ns = statistics.median_interval([r.extra_ns for r in blocks])
            if extra_ns.low > _fresh_slack_ns(schedule, blocks):
                accused += 1
                if accused < _ACCUSATIONS:  # noise that lasts may look like this: it is looked for anew
                    seen, looking = [], schedule.rng.randrange(_MORE_FRESH_ROUNDS[0])
                    continue
                part_ns = plain.median(r.part_ns for r in blocks)
                raise Implausible(
                    "remembers",
                    f"a call takes {part_ns / 1e3:.1f} us where contents are new in part, and "
                    f"{extra_ns.mid / 1e3:.1f} us more where all are, if eager's calls are the measure: it works on "
                    "what it kept of earlier calls",
                )
            least_ns = _fresh_slack_ns(schedule, blocks, said_ns)
            known = not accused and extra_ns.mid <= least_ns and extra_ns.high <= _CLEARED * least_ns
            if known or len(seen) == _MORE_FRESH_ROUNDS[-1]:
                return Fresh(extra_ns=extra_ns, decided=known)


def _quickest(rounds: Sequence[_FreshRound]) -> list[_FreshRound]:
    """Neighbours gathered into blocks, and of each block the quickest call of every kind: others hold a call back now
    and then, and make none quicker, while who has kept nothing of new contents pays for them in every call."""
    size = len(rounds) // statistics.BLOCKS
    return [
        _FreshRound(**{f.name: min(getattr(r, f.name) for r in rounds[n : n + size]) for f in fields(_FreshRound)})
        for n in range(0, len(rounds), size)
    ]


def _fresh_round(
    schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject, renew: Renew, look: VerifiedLook | None, *,
    careful: bool = False,
) -> _FreshRound:  # fmt: skip
    slot, seen = schedule.rng.randrange(schedule.memory.slots), {}
    if not careful:
        renew(slot, False)
    for subject in schedule.rng.sample((ours, eager), 2):
        if schedule.memory.tight:
            schedule.call(subject)  # what it gave back is its own again
            renew(slot, False)
        looked = look if subject is ours else None
        seen[subject.name] = _again(schedule, subject, slot, renew=renew if careful else None, look=looked)
        if schedule.memory.tight:
            subject.cell.do(wire.Drop())
    (fresh, part), (eager_fresh, eager_part) = seen[ours.name], seen[eager.name]
    return _FreshRound(fresh_ns=fresh, part_ns=part, eager_fresh_ns=eager_fresh, eager_part_ns=eager_part)


def _fresh_slack_ns(schedule: BurstSchedule, seen: Sequence[_FreshRound], most_ns: float = math.inf) -> float:
    """Of the quick ones among the calls: that others hold calls back is no reason to forgive more; and of no more than
    `most_ns`, what a call took when it was timed, where a candidate is to be cleared."""
    usual_ns = sorted(r.part_ns for r in seen)[len(seen) // 4]
    return _KEPT_SHARE * min(usual_ns, most_ns) + CLOCK_SLACK_S[schedule.memory.device] * 1e9


def _again(
    schedule: BurstSchedule, subject: TimedSubject, slot: int, *, renew: Renew | None = None,
    look: VerifiedLook | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Two calls on one slot whose contents are new: the tick of each in ns. With `renew`, both follow a call and
    the work of a renewal: contents are new as a whole before the first, and the same again before the second.
    Rows change before every call where they can; without `renew`, before the second alone. With `look`, the first
    is looked at."""
    rows = schedule.timed.stirring is not None and schedule.timed.stirring.changes_rows
    if renew is not None:
        _renewed(schedule, subject, slot, renew, again=True, stir=rows)
        first = _renewed(schedule, subject, slot, renew, again=False, stir=rows, look=look)
        return first, _renewed(schedule, subject, slot, renew, again=True, stir=rows)
    time.sleep(SETTLE_S[schedule.memory.device])
    first = _looked(schedule, subject, slot, stir=False, look=look)
    return first, _looked(schedule, subject, slot, stir=rows)


def _renewed(
    schedule: BurstSchedule, subject: TimedSubject, slot: int, renew: Renew, *, again: bool, stir: bool,
    look: VerifiedLook | None = None,
) -> float:  # fmt: skip
    renew(slot, again)
    time.sleep(SETTLE_S[schedule.memory.device])
    return _looked(schedule, subject, slot, stir=stir, look=look)


def _looked(
    schedule: BurstSchedule, subject: TimedSubject, slot: int, *, stir: bool, look: VerifiedLook | None = None
) -> float:
    """The tick of a call on the slot, in ns."""
    with schedule.watching(subject):
        number, tick, _ = schedule.call(subject, slot=slot, stir=stir)
    if look is not None and tick.ns < look.below_ns:
        look.after(number)
    return tick.ns
