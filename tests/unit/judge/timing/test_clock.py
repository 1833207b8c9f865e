"""What a call does once its clock has stopped shows on the judge's clock, and on the device where that is disturbed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.timing import measure
from tilewright.judge.timing.calls import Caller
from tilewright.judge.timing.interleave import BurstSchedule

TICK_S, ROUNDS, CALLS = 100e-6, 12, 8


def _table(device: str, *, unseen: float, after: float, noise: float) -> BurstSchedule:
    """Eager and a candidate of which the clock, and the device, see so many seconds more; the clock is off by up to
    `noise`."""
    rng = random.Random(3)
    memory: Any = SimpleNamespace(device=device)
    schedule = BurstSchedule(Caller(cast(CaseMemory, memory), rng), subjects=())
    for name, share in (("eager", 0), ("ours", 1)):
        off = [rng.uniform(0, noise) for _ in range(ROUNDS)]
        schedule.bursts[name] = [(TICK_S * 1e9,) * CALLS] * ROUNDS
        schedule.unseen[name] = [
            tuple(1e-4 + o + share * unseen + rng.uniform(0, 1e-5) for _ in range(CALLS)) for o in off
        ]
        schedule.after[name] = [tuple(1e-5 + share * after + rng.uniform(0, 2e-6) for _ in range(CALLS)) for _ in off]
    return schedule


@pytest.mark.parametrize(
    ("device", "unseen", "after", "noise", "said"),
    [
        ("cuda", 0.0, 0.0, 1e-5, ""),
        ("cuda", 0.0, 0.0, 5e-3, ""),
        ("cuda", 4e-4, 4e-4, 1e-5, "clock sees"),
        ("cuda", 4e-4, 4e-4, 5e-3, "works on for 400"),
        ("cuda", 4e-6, 4e-6, 1e-5, ""),
        ("cpu", 4e-4, 0.0, 1e-5, "clock sees"),
        ("cpu", 9e-5, 0.0, 1e-5, ""),
    ],
)
def test_what_is_hidden_shows(device: str, unseen: float, after: float, noise: float, said: str) -> None:
    found = measure._hidden(_table(device, unseen=unseen, after=after, noise=noise), "ours", "eager")
    assert said in found if said else not found, found
