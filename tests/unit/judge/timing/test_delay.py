"""How long a GPU is kept busy before the clock starts: the same for all in a round, by what launches took before."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from tilewright.judge.client import Cell, CellFault
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.timing.calls import Caller
from tilewright.judge.timing.interleave import BurstSchedule, TimedSubject
from tilewright.judge.wire import messages as wire

T = TypeVar("T")
LEAST_NS = 250e3


class _Launching(Cell):
    """Its launches take `ns`, one call in twenty a hundred times as long."""

    def __init__(self, ns: float) -> None:
        self.ns = ns
        self.delays: list[float] = []

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        answer: Any = wire.Done()
        if isinstance(request, wire.TimedCall):
            self.delays.append(request.delay_ns)
            answer = wire.Tick(ns=1e4, launched_ns=self.ns * (100 if len(self.delays) % 20 == 0 else 1))
        assert isinstance(answer, kind)
        return answer


def _rounds(count: int, ours_ns: float, eager_ns: float) -> tuple[BurstSchedule, _Launching, _Launching]:
    memory = SimpleNamespace(
        pool=4, slots=1, device="cuda", tight=False,
        sets=SimpleNamespace(slot=lambda i: (), swap=lambda swaps: None, image=lambda *_: None, place=lambda *_: None),
        described=SimpleNamespace(args=""),
    )  # fmt: skip
    ours, eager = _Launching(ours_ns), _Launching(eager_ns)
    ours.usage = eager.usage = SimpleNamespace(cpu_s=lambda: 0.0)  # type: ignore[assignment]
    subjects = [TimedSubject("ours", ours), TimedSubject("eager", eager), TimedSubject("eager_again", eager)]
    schedule = BurstSchedule(Caller(cast(CaseMemory, memory), random.Random(1)), subjects=subjects, watched=ours)
    schedule.calls = {p.name: 20 for p in subjects}
    for _ in range(count):
        schedule.round()
    return schedule, ours, eager


def test_it_is_one_in_a_round_whatever_single_calls_take() -> None:
    _, ours, eager = _rounds(6, 4e5, 3e5)
    for k in range(6):
        assert len({*ours.delays[20 * k : 20 * k + 20], *eager.delays[40 * k : 40 * k + 40]}) == 1


@pytest.mark.parametrize(
    ("ours_ns", "eager_ns", "delay_ns"),
    [
        (1e4, 1e4, LEAST_NS),
        (1e4, 4e5, 1.3 * 4e5),  # the baseline's launches are hidden
        (3e5, 2.5e5, 1.3 * 3e5),  # and the candidate's, which are a little slower
        (1e7, 1e4, 2 * LEAST_NS),  # but it can't have as long as it likes
        (1e4, 1e7, 1e6),
    ],
)
def test_it_is_as_long_as_launches_take(ours_ns: float, eager_ns: float, delay_ns: float) -> None:
    schedule, _, _ = _rounds(12, ours_ns, eager_ns)
    assert schedule.timed.delay.ns == pytest.approx(delay_ns)


def test_it_becomes_shorter_again_slowly() -> None:
    schedule, _, eager = _rounds(3, 1e4, 6e5)
    assert schedule.timed.delay.ns == pytest.approx(7.8e5)
    eager.ns = 1e4
    schedule.round()
    schedule.round()
    assert schedule.timed.delay.ns == pytest.approx(0.8 * 7.8e5)


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -1.0])
def test_a_cell_that_says_nonsense_is_refused(said: float) -> None:
    schedule, ours, _ = _rounds(1, 1e4, 1e4)
    ours.ns, ours.plan = said, SimpleNamespace(name="candidate")  # type: ignore[assignment]
    ours.kill = lambda: None  # type: ignore[method-assign]
    with pytest.raises(CellFault, match="to launch"):
        schedule.call(schedule.subjects[0])
