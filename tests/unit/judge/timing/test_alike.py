"""Nothing that a cell is asked before a timed call tells whether the call will be looked at."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from tilewright.judge.client import Cell
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.memory.evictor import Evictor
from tilewright.judge.timing import calls, interleave
from tilewright.judge.timing.calls import Caller
from tilewright.judge.timing.interleave import BurstSchedule, TimedSubject, TurnRedraw, VerifiedLook
from tilewright.judge.wire import messages as wire

T = TypeVar("T")
CALLS, ROUNDS = 8, 400


class _Noting(Cell):
    """Notes what it is asked; its calls take a microsecond."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.usage = SimpleNamespace(cpu_s=lambda: 0.0)  # type: ignore[assignment]

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        self.asked.append(request)
        walk = isinstance(request, wire.Clear) and request.seed >= 0
        answer: Any = wire.Tick(ns=1e3) if isinstance(request, wire.TimedCall) else wire.Done()
        answer = wire.Cleared(found=0.0) if walk else answer
        assert isinstance(answer, kind)
        return answer


class _Evictor(Evictor):
    """Whose walks find what they should."""

    def __init__(self) -> None:
        super().__init__(64, "none")

    def require_walked(self) -> None:
        self._walked.clear()


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> BurstSchedule:
    """Of a module with a buffer and a count that move; its state is redrawn by a message of its own."""
    still = SimpleNamespace(perf_counter=lambda: 0.0, sleep=lambda s: None, monotonic=lambda: 0.0)
    monkeypatch.setattr(calls, "time", still)
    monkeypatch.setattr(interleave, "time", still)
    memory = SimpleNamespace(
        pool=CALLS, slots=3, device="cpu",
        sets=SimpleNamespace(slot=lambda i: (), swap=lambda swaps: None, image=lambda *_: None),
        tight=False, described=SimpleNamespace(args=""),
        state=SimpleNamespace(attributes=(wire.Attribute(name="n", text="3"),), buffers=lambda names: ()),
    )  # fmt: skip
    cell = _Noting()
    ours = TimedSubject("ours", cell, moved=("mean",), attributes=("n",))
    load = TurnRedraw(change=lambda: cell.do(wire.LoadState(names=(), refs=())), _began=-1.0)
    timed = Caller(cast(CaseMemory, memory), random.Random(1), evictor=_Evictor())
    return BurstSchedule(timed, subjects=[ours], watched=cell, redraw=load)


def test_before_a_call_that_is_looked_at_the_same_is_done_as_before_any_other(schedule: BurstSchedule) -> None:
    (ours,) = schedule.subjects
    cell = cast(_Noting, ours.cell)
    before: dict[bool, Counter[tuple[str, ...]]] = {True: Counter(), False: Counter()}
    told: set[Any] = set()
    for number in range(ROUNDS):
        looked: list[int] = []
        cell.asked.clear()
        schedule.turn(ours, calls=CALLS, look=VerifiedLook(after=looked.append) if number % 2 else None)
        timed = [i for i, r in enumerate(cell.asked) if isinstance(r, wire.TimedCall)]
        for start, end in zip([-1, *timed[:-1]], timed, strict=True):
            told |= {(r.flush_bytes, r.attributes) for r in cell.asked[start + 1 : end] if isinstance(r, wire.Clear)}
            names = tuple(type(r).__name__ for r in cell.asked[start + 1 : end] if not isinstance(r, wire.Deal))
            before[bool(looked) and end == timed[-1]][names] += 1
    assert told == {(64, schedule.memory.state.attributes)}, (
        "state is put back before each call, and caches are evicted"
    )
    assert set(before[True]) == set(before[False]) == {("Clear",), ("LoadState", "Clear")}
    share = {k: c["LoadState", "Clear"] / c.total() for k, c in before.items()}
    assert share[True] == pytest.approx(share[False], abs=0.06), "state is redrawn whether or not anybody looks"


def test_nobody_sees_contents_twice_in_a_round(schedule: BurstSchedule) -> None:
    (ours,) = schedule.subjects
    for _ in range(5):
        schedule.renew_contents()
        seen = [schedule.call(ours)[0] for _ in range(CALLS)]
        assert sorted(seen) == list(range(CALLS))
