"""Waiting for what another process does: on a busy machine that may take long, and a fixed sleep is never enough."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_S = 120.0  # what never comes fails the test then


def wait_until(holds: Callable[[], bool], *, longest_s: float = LONGEST_S) -> None:
    """Return as soon as it holds. Raises AssertionError where it does not in `longest_s`."""
    deadline = time.monotonic() + longest_s
    while not holds():
        assert time.monotonic() < deadline, f"it does not hold after {longest_s:.0f} s"
        time.sleep(0.01)
