"""A small gain on a CPU is judged twice, in processes of their own: of two that run the same code one may be the faster
one for as long as they live, by where their pages lie and which neighbours their processors have."""

from __future__ import annotations

from collections.abc import Callable

from ..facts.outcome import Failure, Timed

SURE = 1.35  # processes that ran the same module beside others' work differed by up to 1.31 for good


def confirmed(
    judged: Callable[[], Timed | Failure], *, renew: Callable[[], None], say: Callable[[str], None]
) -> Timed | Failure:
    """What `judged` gives. Where that is a gain over eager of less than SURE, it is judged once more after `renew`, and
    the lesser of both is believed; a refusal stands whenever it comes."""
    first = judged()
    if isinstance(first, Failure) or not first.faster_than("eager") or _gain(first) >= SURE:
        return first
    say(f"{_gain(first):.2f} of eager's speed at least: judged once more, in fresh processes, to be sure of it")
    renew()
    second = judged()
    if isinstance(second, Failure) or not second.faster_than("eager"):
        return second
    return min(first, second, key=_gain)


def _gain(timed: Timed) -> float:
    ratio = timed.ratio("eager")
    return ratio.low if ratio is not None else 0.0
