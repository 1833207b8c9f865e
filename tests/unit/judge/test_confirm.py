"""A small gain is judged twice, and the lesser is believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes.facts import timed
from tilewright.facts.outcome import Failure, Timed
from tilewright.judge.confirm import confirmed

REFUSED = Failure(stage="check", reason="wrong_values", summary="it is off")


def judging(*outcomes: Timed | Failure) -> tuple[Callable[[], Timed | Failure], list[str]]:
    """Gives these in turn; and what was done, in order."""
    left, done = list(outcomes), list[str]()

    def judged() -> Timed | Failure:
        done.append("judged")
        return left.pop(0)

    return judged, done


@pytest.mark.parametrize(
    ("outcomes", "believed"),
    [
        ((timed(1.2), timed(1.1)), 1), ((timed(1.1), timed(1.2)), 0), ((timed(1.25), timed(1.0)), 1),
        ((timed(1.25), timed(0.8)), 1), ((timed(1.2), REFUSED), 1),
    ],
)  # fmt: skip
def test_the_lesser_of_two_is_believed(outcomes: tuple[Timed | Failure, ...], believed: int) -> None:
    judged, done = judging(*outcomes)
    told: list[str] = []
    assert confirmed(judged, renew=lambda: done.append("renewed"), say=told.append) is outcomes[believed]
    assert done == ["judged", "renewed", "judged"] and len(told) == 1


@pytest.mark.parametrize("outcome", [timed(1.6), timed(1.0), timed(0.7), REFUSED])
def test_what_is_large_or_none_is_judged_once(outcome: Timed | Failure) -> None:
    judged, done = judging(outcome)
    assert confirmed(judged, renew=lambda: done.append("renewed"), say=lambda _: None) is outcome
    assert done == ["judged"]
