"""The slope over two lengths: what one call more in a row adds by the judge's clock, against what one by itself says.

What the judge sees of one request holds more than the call: the channel, a process that wakes up. All of that is there
once however many calls are asked for, so that a row less one call is calls alone. Of eager's the same is taken, in
turn. What the candidate's cost beyond their ticks and beyond eager's was done outside the clock of its cell, however
short the calls are.
"""

from __future__ import annotations

import statistics as plain
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...facts.outcome import Interval
from ..wire import messages as wire
from . import statistics
from .calls import RowLook
from .interleave import BurstSchedule, TimedSubject
from .measure import Implausible

# A row takes about so long, and holds between so many calls; a round takes the medians of so many rows. On two busy
# threads (AMD EPYC, 2026-11-22) a call that hid 75 us was refused in 7 of 8 judgements with five rows of 3 ms, and in
# none of 6 with one of 20 ms: what disturbs a process meets few of the short ones.
# On a GPU rows of calls of ms last longer by themselves, and fewer of them fill a round: of what is refused, a tenth of
# such a call, noise is a small part, and five rows would hold the device for 2.5 to 5.6 s (one H200, 2026-11-22).
_ROW_S, _FEWEST, _MOST, _ROWS, _LONG_ROWS = 0.003, 4, 24, 5, 2
_KEPT_BYTES = 256 << 20  # of results and their copies, in a row of which all are kept
_LONGEST_CALL_S = 5e-3  # of longer calls the judge's clock alone leaves a tenth, and no more could be said here
_SLACK = 0.1  # of a call
_SLACK_S = {
    "cpu": 30e-6,
    "cuda": 20e-6,
}  # on a GPU what a host needs for a call differs by process; rows of 3 ms have not run there
_DOUBTFUL_LOOKS, _TRIALS, _WARM = 6, 3, 3


@dataclass(slots=True)
class _Seen:
    """Of one subject, in each round, in ns: what one call more in a row took beyond its tick, by how much that is more
    than the tick of a call by itself, and that tick."""

    beyond_ns: list[float] = field(default_factory=list)
    growth_ns: list[float] = field(default_factory=list)
    tick_ns: list[float] = field(default_factory=list)


def check_slope(
    schedule: BurstSchedule, ours: TimedSubject, eager: TimedSubject, *, look: RowLook | None
) -> Interval | None:
    """By how many ns one of our calls in a row costs more than it says by itself, beyond what eager's does; None where
    calls are too long for that to tell anything. Raises Implausible("clock_disagrees") where it is more than may be,
    each time that this is looked for. `look` verifies a call of one row."""
    said_s = [plain.median(schedule.bursts[p.name][-1]) / 1e9 for p in (ours, eager)]
    if max(said_s) > _LONGEST_CALL_S:
        return None
    for trial in range(_TRIALS):
        # who has computed for longer waits longer to go on, where the machine is busy
        subjects = ours, eager.as_long(said_s[0] / said_s[1] if trial else 1)
        excess_ns, tick_ns = _excess(schedule, subjects, look=None if trial else look)
        if excess_ns.low <= _slack_ns(schedule, tick_ns):
            return excess_ns
    raise Implausible(
        "clock_disagrees",
        f"by its own clock a call takes {tick_ns / 1e3:.1f} us; by the judge's, one call more in a row costs "
        f"{excess_ns.mid / 1e3:.1f} us beyond that, if eager's calls are the measure: work is done outside the timed "
        "region",
    )


def _excess(
    schedule: BurstSchedule, subjects: Sequence[TimedSubject], *, look: RowLook | None
) -> tuple[Interval, float]:
    """By how much the first subject's calls in a row cost more beyond their ticks than the second's, and its tick, in
    ns. More rounds where few leave a doubt."""
    calls, rows, keep = _length(schedule, subjects)
    seen = {p.name: _Seen() for p in subjects}
    for subject in subjects:
        schedule.timed.row(subject, calls=calls, keep=keep)  # memory for so many results is had once
    looking, redrawn = (schedule.rng.randrange(statistics.LOOKS[0]) for _ in range(2))
    for rounds in statistics.LOOKS[:_DOUBTFUL_LOOKS]:
        while len(seen[subjects[0].name].tick_ns) < rounds:
            number = len(seen[subjects[0].name].tick_ns)
            looked = look if number == looking else None
            if number == redrawn:
                schedule.redraw.renew()
            for subject in schedule.shuffled(subjects):
                verify = looked if subject is subjects[0] else None
                _round(schedule, subject, seen[subject.name], (calls, rows), keep, verify)
        ours, eager = (seen[p.name] for p in subjects)
        excess_ns, tick_ns = statistics.median_interval(_extra_ns(ours, eager)), plain.median(ours.tick_ns)
        if not excess_ns.low <= _slack_ns(schedule, tick_ns) < excess_ns.mid:
            break
    schedule.redraw.calm()
    return excess_ns, tick_ns


def _extra_ns(ours: _Seen, eager: _Seen) -> list[float]:
    """In each round, ours beyond eager's. A tick that grows in a row may grow as eager's does; that eager's shrinks
    there, as where a row has at hand the memory that a call by itself is given anew, is no measure for ours."""
    grows = plain.median(eager.growth_ns) > 0
    allowed = eager.growth_ns if grows else [0.0] * len(eager.growth_ns)
    beyond = zip(ours.beyond_ns, eager.beyond_ns, ours.growth_ns, allowed, strict=True)
    return [mine - theirs + growth - like for mine, theirs, growth, like in beyond]


def _round(
    schedule: BurstSchedule, subject: TimedSubject, seen: _Seen, size: tuple[int, int], keep: bool, look: RowLook | None
) -> None:
    calls, rows = size
    beyond_ns: list[float] = []
    row_ns: list[float] = []
    tick_ns: list[float] = []
    for number in range(rows):
        _, tick, wall_s = schedule.call(subject, cold=False)
        ticks_ns, row_s = schedule.timed.row(subject, calls=calls, keep=keep, look=look if number == 0 else None)
        beyond_ns.append(((row_s - wall_s) * 1e9 - sum(ticks_ns) + tick.ns) / (calls - 1))
        row_ns += ticks_ns
        tick_ns.append(tick.ns)
    # what disturbs a call is in its tick: in the mean of a row, but not in the median that a call by itself is known by
    seen.beyond_ns.append(plain.median(beyond_ns))
    seen.growth_ns.append(plain.median(row_ns) - plain.median(tick_ns))
    seen.tick_ns.append(plain.median(tick_ns))
    if schedule.memory.tight:
        subject.cell.do(wire.Drop())


def _length(schedule: BurstSchedule, subjects: Sequence[TimedSubject]) -> tuple[int, int, bool]:
    """How many calls a row has, how many rows a round, and whether all results of a row are kept."""
    each_s = max(
        plain.median(wall_s for *_, wall_s in (schedule.call(p, cold=False) for _ in range(_WARM))) for p in subjects
    )
    calls = max(_FEWEST, min(_MOST, round(_ROW_S / each_s)))
    kept = _KEPT_BYTES // max(1, 2 * sum(schedule.memory.poison_bytes()))
    calls, keep = (min(calls, kept), True) if kept >= _FEWEST else (_FEWEST, False)
    enough = max(_LONG_ROWS, min(_ROWS, round(_ROWS * _ROW_S / (calls * each_s))))
    return calls, enough if schedule.memory.device == "cuda" else _ROWS, keep


def _slack_ns(schedule: BurstSchedule, tick_ns: float) -> float:
    return _SLACK * tick_ns + _SLACK_S[schedule.memory.device] * 1e9
