"""A sweep over the points of a Space: each is set, verified and timed against an anchor, until the winner is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...facts.outcome import LEAST_GAIN, Interval, PointTime
from ...facts.space import Point
from ..client import CellFault
from .interleave import BurstSchedule, TimedSubject
from .statistics import burst_medians, time_interval

_BURSTS = 4  # of a point in one pass, each beside one of the anchor's
_MOST_PASSES = 4  # what 16 bursts can't tell apart is equal for every purpose
_LONG = 12  # so few calls fill a burst: on a GPU, whose clock alone counts, three of them say as much
_OF_LONG = 3
_KEPT_SHARE = 0.5
_MOST_DRIFT = 1.5  # clocks and heat do no more; what an anchor varies beyond is noise of its own
LATE = "not reached: the time for tuning was over"
_NEAR = 1.15  # points within this factor of the best are measured again


@dataclass(frozen=True, slots=True)
class TunedSubject:
    """`set_point(point)` configures the candidate and verifies one call; it gives "" or why the point does not work."""

    ours: TimedSubject
    anchor: TimedSubject
    set_point: Callable[[Point], str]


def sweep(
    schedule: BurstSchedule, subject: TunedSubject, points: Sequence[Point],
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[PointTime, ...]:  # fmt: skip
    """Times of all points, in the order given: successive halving with interleaved repeats. Setting a point may
    compile, so each is set once a pass and its bursts alternate with the anchor's; times are scaled by what the anchor
    did meanwhile, which takes out slow drift. It ends when no point that is left can still win beyond noise, and where
    `is_over`, once a point has been measured; the others were not reached then."""
    schedule.subjects = [subject.ours, subject.anchor]
    mine: dict[int, list[tuple[float, ...]]] = {}
    anchors: dict[int, list[tuple[float, ...]]] = {}
    failures: dict[int, str] = {}
    alive = list(range(len(points)))
    for _ in range(_MOST_PASSES):
        for index in schedule.rng.sample(alive, len(alive)):
            if mine and is_over():
                break
            failure = subject.set_point(points[index]) or _measured(schedule, subject)
            if failure:
                failures[index] = failure
                continue
            mine.setdefault(index, []).extend(schedule.bursts[subject.ours.name])
            anchors.setdefault(index, []).extend(schedule.bursts[subject.anchor.name])
        alive = survivors({i: scaled(mine[i], anchors[i], anchors) for i in alive if i in mine and i not in failures})
        if len(alive) < 2 or (mine and is_over()):
            break
    times = {i: scaled(mine[i], anchors[i], anchors) for i in mine if i not in failures}
    late = {i: LATE for i in range(len(points)) if i not in times}
    return tuple(
        PointTime(point=p, time_ns=times.get(i), failure=failures.get(i, late.get(i, ""))) for i, p in enumerate(points)
    )


def _measured(schedule: BurstSchedule, subject: TunedSubject) -> str:
    """One pass of the point that is set: bursts in `table`; or why there are none, where that is the candidate's. The
    anchor, which is the same at all points, is warmed up before the first alone."""
    schedule.bursts = {}
    try:
        schedule.warm_up([p for p in schedule.subjects if p is not subject.anchor or p.name not in schedule.calls])
        if schedule.memory.device == "cuda":
            schedule.calls |= {name: min(n, _OF_LONG) for name, n in schedule.calls.items() if n <= _LONG}
        for _ in range(_BURSTS):
            schedule.round()
    except CellFault as fault:
        if fault.source != subject.ours.cell.plan.name or not subject.ours.cell.alive:
            raise
        return str(fault)[:500]
    return ""


def scaled(
    mine: Sequence[tuple[float, ...]], anchor: Sequence[tuple[float, ...]], anchors: dict[int, list[tuple[float, ...]]]
) -> Interval:
    """ns per call, as if the anchor had run at its overall median beside every burst."""
    overall = float(np.median(np.concatenate([burst_medians(b) for b in anchors.values()])))
    factors = np.clip(overall / burst_medians(anchor), 1 / _MOST_DRIFT, _MOST_DRIFT)
    return time_interval([(float(m * f),) for m, f in zip(burst_medians(mine), factors, strict=True)])


def survivors(times: Mapping[int, Interval]) -> list[int]:
    """Who is measured again, the best first: of the faster half, and those near the best, all that may still win."""
    ranked = sorted(times, key=lambda i: times[i].mid)
    if not ranked:
        return []
    best = times[ranked[0]]
    keep = max(1, round(_KEPT_SHARE * len(ranked)))
    wanted = [i for place, i in enumerate(ranked) if place < keep or times[i].mid <= _NEAR * best.mid]
    return [i for i in wanted if i == ranked[0] or _may_win(times[i], best)]


def _may_win(time: Interval, best: Interval) -> bool:
    """Whether it may be faster than the best by more than LEAST_GAIN, as far as both are known: the errors of the two
    are independent, so they add up as squares."""
    unknown = math.hypot(time.mid - time.low, best.high - best.mid)
    return time.mid - unknown < best.mid * (1 - LEAST_GAIN)


def one_each(points: Sequence[Point], times: Sequence[PointTime], dead: Mapping[Point, str]) -> tuple[PointTime, ...]:
    """One PointTime for every point, in the order given."""
    known = {t.point: t for t in times}
    return tuple(known.get(p) or PointTime(point=p, time_ns=None, failure=dead.get(p, "not reached")) for p in points)
