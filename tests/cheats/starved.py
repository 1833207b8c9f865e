"""How long the machine makes processes wait for a processor: what rests on times is no proof where that is long."""

from __future__ import annotations

import time

BUSY = "too busy to judge"  # what a judge says of a machine that lets it measure nothing
TOO_MUCH = 4.0  # three workers of these tests and two judges on two processors come to some 2.5
_BURST_S = 0.05


def slowdown() -> float:
    """How many times longer than processor time it takes to work, one thread alone, at this moment."""
    wall, spent = time.perf_counter(), time.thread_time()
    while time.thread_time() - spent < _BURST_S:
        pass
    return max(1.0, (time.perf_counter() - wall) / (time.thread_time() - spent))


def patient(limit_s: float) -> float:
    """A limit on wall time for what takes `limit_s` of an idle machine, here and now."""
    return limit_s * slowdown()


def starved() -> str:
    """What keeps this machine from telling times, in words; "" where nothing does."""
    found = slowdown()
    return f"work takes {found:.1f} times as long as processor time" if found > TOO_MUCH else ""


def excuse(failure: str, *, measured: bool) -> str:
    """Why a test that failed so proves nothing here; "" where it does. `measured`: it rests on times, and a starved
    machine excuses it; any other one only what the judge itself said."""
    said = next((line for line in failure.splitlines() if BUSY in line.replace("_", " ")), "")
    return said.strip()[:300] or (starved() if measured else "")
