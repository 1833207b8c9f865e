"""Nothing is timed before the processes of the cells rest, or have had long enough to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tilewright.judge.client import Cell
from tilewright.judge.timing import measure


class Clock:
    """It moves by what is slept."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Busy:
    """Uses a whole processor until then."""

    def __init__(self, clock: Clock, until_s: float) -> None:
        self.clock, self.until_s = clock, until_s
        self.usage = self

    def cpu_s(self) -> float:
        return min(self.clock.now_s, self.until_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep))
    return made


def _rested_after(clock: Clock, *until_s: float, longest_s: float = 15.0) -> float:
    measure.rest(cast("list[Cell]", [Busy(clock, until) for until in until_s]), longest_s=longest_s)
    return clock.now_s


def test_whoever_rests_is_not_waited_for(clock: Clock) -> None:
    assert _rested_after(clock, 0.0) == pytest.approx(0.1), "a look"


def test_whoever_is_busy_is_waited_for(clock: Clock) -> None:
    assert 0.5 < _rested_after(clock, 0.0, 0.5) < 0.8


def test_nobody_is_waited_for_without_end(clock: Clock) -> None:
    assert _rested_after(clock, 1e9, longest_s=0.35) == pytest.approx(0.4)
