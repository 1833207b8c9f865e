"""What a refusal by clocks says of a machine that was busy meanwhile."""

from __future__ import annotations

from tilewright.edges.sandbox.strain import Strain
from tilewright.judge.time_case import _of_others


def _strain(others: float) -> Strain:
    return Strain(others=others, hidden=0.0, throttled=0.0, processors=2)


def test_a_busy_machine_is_told_of() -> None:
    told = _of_others(_strain(0.65))
    assert told.startswith("other processes had 1.3 of 2 processors") and "judged again" in told


def test_a_quiet_one_is_not() -> None:
    assert _of_others(_strain(0.05)) == ""
