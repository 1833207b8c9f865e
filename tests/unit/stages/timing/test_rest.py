"""Nothing is timed before the processes of the cells rest, or have had long enough to."""

from __future__ import annotations

import time
from typing import cast

from tilewright.edges.sandbox.cell import Cell
from tilewright.stages.timing import measure


class Busy:
    """Uses a whole processor for so many seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self.started, self.seconds = time.monotonic(), seconds

    def cpu_s(self) -> float:
        return min(time.monotonic() - self.started, self.seconds)


def _rested_after(*cells: Busy, longest_s: float = 15.0) -> float:
    started = time.monotonic()
    measure.rest(cast("list[Cell]", cells), longest_s=longest_s)
    return time.monotonic() - started


def test_whoever_is_busy_is_waited_for() -> None:
    assert _rested_after(Busy(0.0)) < 0.3
    assert 0.5 < _rested_after(Busy(0.0), Busy(0.5)) < 1.5


def test_nobody_is_waited_for_without_end() -> None:
    assert 0.3 < _rested_after(Busy(1e9), longest_s=0.4) < 1.5
