"""Whether one candidate is faster than another, each in a judgement of its own."""

from __future__ import annotations

from ...facts.outcome import Interval, Timed


def faster(one: Timed, other: Timed) -> bool:
    """Beyond noise: the interval of `one`'s ratio against eager lies above the other's. Or, where an unsteady eager
    leaves that open, its own times lie below the other's by more than eager's moved from one judgement to the other."""
    mine, theirs = one.ratio("eager"), other.ratio("eager")
    if mine is None or theirs is None:
        return False
    ours, before = (one.time("ours"), one.time("eager")), (other.time("ours"), other.time("eager"))
    return mine.low > theirs.high or _faster_by_clock(*ours, *before)


def _faster_by_clock(
    ours: Interval | None, eager: Interval | None, best: Interval | None, eager_then: Interval | None
) -> bool:
    if not (ours and eager and best and eager_then):
        return False
    moved = max(eager.low / eager_then.low, eager_then.low / eager.low)
    return ours.high * moved < best.low
