"""What is done between timed calls is held against eager's, added to the calls, or refused; noise is not."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.timing.calls import Caller
from tilewright.judge.timing.interleave import BurstSchedule, TimedSubject
from tilewright.judge.timing.measure import Implausible
from tilewright.judge.timing.turns import check_turns

CALL_S, ROUNDS, CALLS = 2e-3, 8, 6
PLAYERS = (TimedSubject("ours", cast(Any, None)), TimedSubject("eager", cast(Any, None)))


class _Seen(BurstSchedule):
    """Between its calls, each of which takes 2 ms, eager's cell needs 10 ms, the candidate's `wall_s` more, and all its
    processes `cpu_s` more; the first `busy` rounds are disturbed."""

    wall_s = cpu_s = 0.0
    busy = 0

    def round(self, looks: object = None) -> None:
        disturbed = len(self.bursts.get("ours", ())) < self.busy
        for name, share in (("ours", 1), ("eager", 0)):
            held_s = 5e-3 * disturbed * share
            more_s = [share * self.wall_s + held_s + self.rng.uniform(-3e-4, 3e-4) for _ in range(CALLS)]
            self.bursts.setdefault(name, []).append((CALL_S * 1e9,) * CALLS)
            self.between.setdefault(name, []).append(tuple(1e-2 + m for m in more_s))
            self.used.setdefault(name, []).append(CALL_S)
            self.cpu.setdefault(name, []).append(1.3e-2 + share * self.cpu_s + self.rng.uniform(-2e-4, 2e-4))

    def anew(self, subjects: object, calls: object) -> BurstSchedule:
        again = _table(self.wall_s, self.cpu_s)
        again.busy = 0
        return again


def _table(wall_s: float, cpu_s: float, busy: int = 0) -> _Seen:
    memory: Any = SimpleNamespace(device="cpu")
    schedule = _Seen(Caller(cast(CaseMemory, memory), random.Random(3)), subjects=PLAYERS)
    schedule.wall_s, schedule.cpu_s, schedule.busy = wall_s, cpu_s, busy
    return schedule


def _checked(schedule: _Seen, threads: int = 1) -> float:
    for _ in range(ROUNDS):
        schedule.round()
    return check_turns(schedule, *PLAYERS, threads=threads)


@pytest.mark.parametrize("wall_s", [-1e-3, 0.0, 1e-4])
def test_what_noise_explains_costs_nothing(wall_s: float) -> None:
    assert _checked(_table(wall_s, 0.0)) == 0.0


def test_what_a_busy_machine_held_back_is_not_seen_again() -> None:
    assert _checked(_table(0.0, 0.0, busy=ROUNDS)) == 0.0


def test_what_is_more_is_added() -> None:
    assert _checked(_table(1e-3, 0.0)) == pytest.approx(1e6, rel=0.3)


def test_who_works_longer_between_calls_than_eager_in_one_is_refused() -> None:
    with pytest.raises(Implausible, match=r"it takes [56]\d\d\d us by the judge's clock") as refused:
        _checked(_table(6e-3, 0.0))
    assert refused.value.failure.reason == "works_between"


def test_so_is_who_has_threads_or_children_work() -> None:
    with pytest.raises(Implausible, match="of processors' time"):
        _checked(_table(0.0, 8e-3))


def test_a_call_may_use_children_and_threads_may_wait() -> None:
    assert _checked(_table(0.0, 1.5 * CALL_S)) == 0.0
    assert _checked(_table(0.0, 2.4e-2), threads=2) == 0.0
