"""What a call does outside its cell's clock shows in a row of calls, where the judge's clock on one can't see it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from tilewright.judge.client import Cell, CellFault
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.timing import calls, interleave
from tilewright.judge.timing.calls import Caller
from tilewright.judge.timing.interleave import BurstSchedule, TimedSubject
from tilewright.judge.timing.measure import Implausible
from tilewright.judge.timing.slope import check_slope
from tilewright.judge.wire import messages as wire

T = TypeVar("T")


class _Clock:
    """The judge's clock, which goes on when a cell works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class _Working(Cell):
    """Each call takes `said_s` by the cell's clock and `hidden_s` beyond, one by itself `alone_s` more by both; each
    request `answer_s`, more or less."""

    def __init__(self, clock: _Clock, *, said_s: float, hidden_s: float, answer_s: float, honest_rows: bool) -> None:
        self.clock, self.said_s, self.hidden_s, self.answer_s = clock, said_s, hidden_s, answer_s
        self.honest_rows, self.rows, self.alone_s = honest_rows, 0, 0.0
        self.rng = random.Random(4)
        self.plan = SimpleNamespace(name="candidate")  # type: ignore[assignment]

    def kill(self) -> None:
        pass

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        answer: Any = wire.Done()
        if isinstance(request, wire.TimedCall):
            answer = self._tick(request, in_a_row=False)
        elif isinstance(request, wire.TimedCalls):
            self.rows += 1
            answer = wire.Ticks(ticks=tuple(self._tick(call, in_a_row=True) for call in request.calls))
        self.clock.now_s += self.answer_s * self.rng.uniform(0.8, 1.2)
        assert isinstance(answer, kind)
        return answer

    def _tick(self, call: wire.TimedCall, *, in_a_row: bool) -> wire.Tick:
        alone_s = 0.0 if in_a_row else self.alone_s
        told_s = self.said_s + alone_s + (self.hidden_s if in_a_row and self.honest_rows else 0.0)
        self.clock.now_s += call.repeat * (self.said_s + alone_s + self.hidden_s + 2e-5) * self.rng.uniform(0.98, 1.02)
        return wire.Tick(ns=call.repeat * told_s * 1e9)


def _table(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    *,
    hidden_s: float,
    said_s: float = 4e-5,
    honest_rows: bool = False,
    result_bytes: int = 4096,
) -> tuple[BurstSchedule, tuple[_Working, _Working]]:
    """A candidate that answers a request much more quickly than eager does: its clock disagrees by nothing there."""
    clock = _Clock()
    still = SimpleNamespace(perf_counter=clock.perf_counter, sleep=lambda s: None, monotonic=lambda: 0.0)
    for module in (calls, interleave):
        monkeypatch.setattr(module, "time", still)
    memory = SimpleNamespace(
        pool=4, slots=2, device=device, tight=False,
        sets=SimpleNamespace(
            slot=lambda i: (), swap=lambda swaps: None, image=lambda *_: None, place=lambda *_: None,
        ),
        poison_bytes=lambda: (result_bytes,), described=SimpleNamespace(args=""),
    )  # fmt: skip
    ours = _Working(clock, said_s=said_s, hidden_s=hidden_s, answer_s=1e-4, honest_rows=honest_rows)
    eager = _Working(clock, said_s=said_s, hidden_s=0.0, answer_s=1e-4 + hidden_s, honest_rows=True)
    subjects = [TimedSubject("ours", ours), TimedSubject("eager", eager)]
    schedule = BurstSchedule(Caller(cast(CaseMemory, memory), random.Random(1)), subjects=subjects)
    schedule.bursts = {p.name: [(said_s * 1e9,)] for p in subjects}
    return schedule, (ours, eager)


@pytest.mark.parametrize(("device", "hidden_s"), [("cpu", 6e-5), ("cuda", 3.2e-5)])
@pytest.mark.parametrize("honest_rows", [False, True])
def test_what_is_hidden_shows_in_a_row(
    monkeypatch: pytest.MonkeyPatch, device: str, hidden_s: float, honest_rows: bool
) -> None:
    """Nor does it help to be honest in rows: then the same call has two prices."""
    schedule, _ = _table(monkeypatch, device, hidden_s=hidden_s, honest_rows=honest_rows)
    with pytest.raises(Implausible, match="one call more in a row costs") as refused:
        check_slope(schedule, *schedule.subjects, look=None)
    told_us = float(str(refused.value).split("costs ")[1].split(" us")[0])
    assert told_us == pytest.approx(hidden_s * 1e6, rel=0.1)


@pytest.mark.parametrize(("device", "hidden_s"), [("cpu", 0.0), ("cpu", 5e-6), ("cuda", 0.0), ("cuda", 1e-6)])
def test_what_may_be_is_accepted_and_told(monkeypatch: pytest.MonkeyPatch, device: str, hidden_s: float) -> None:
    schedule, _ = _table(monkeypatch, device, hidden_s=hidden_s)
    found = check_slope(schedule, *schedule.subjects, look=None)
    assert found is not None
    assert found.mid / 1e9 == pytest.approx(hidden_s, abs=1.5e-6)


@pytest.mark.parametrize("hidden_s", [0.0, 6e-5])
def test_an_eager_that_is_quicker_in_a_row_is_no_measure_for_who_is_not(
    monkeypatch: pytest.MonkeyPatch, hidden_s: float
) -> None:
    schedule, (_, eager) = _table(monkeypatch, "cpu", hidden_s=hidden_s)
    eager.alone_s = 1e-3
    if hidden_s:
        with pytest.raises(Implausible, match="one call more in a row costs"):
            check_slope(schedule, *schedule.subjects, look=None)
    else:
        found = check_slope(schedule, *schedule.subjects, look=None)
        assert found is not None
        assert found.mid == pytest.approx(0.0, abs=5e3)


def test_one_call_of_a_row_is_looked_at_and_which_one_is_decided_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []
    for seed in range(12):
        schedule, (ours, _) = _table(monkeypatch, "cpu", hidden_s=0.0)
        schedule.rng.seed(seed)
        seen: list[tuple[int, int]] = []

        def look(slot: int, number: int, seen: list[tuple[int, int]] = seen, ours: _Working = ours) -> None:
            seen.append((number, ours.rows))

        check_slope(schedule, *schedule.subjects, look=look)
        assert len(seen) == 1
        numbers.append(seen[0])
    assert len(set(numbers)) > 6


def test_of_large_results_the_last_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, _ = _table(monkeypatch, "cuda", hidden_s=0.0, result_bytes=1 << 30)
    numbers: list[int] = []
    check_slope(schedule, *schedule.subjects, look=lambda slot, number: numbers.append(number))
    assert numbers == [-1]


@pytest.mark.parametrize(("device", "rows"), [("cpu", 5), ("cuda", 2)])
def test_of_long_calls_fewer_rows_tell_enough_on_a_gpu(monkeypatch: pytest.MonkeyPatch, device: str, rows: int) -> None:
    schedule, (ours, _) = _table(monkeypatch, device, hidden_s=5e-4, said_s=4e-3)
    with pytest.raises(Implausible, match="one call more in a row costs"):
        check_slope(schedule, *schedule.subjects, look=None)
    assert ours.rows == 3 * (1 + 8 * rows), "each trial begins with a row of which nothing is kept"
    schedule, (ours, _) = _table(monkeypatch, device, hidden_s=0.0, said_s=4e-5)
    check_slope(schedule, *schedule.subjects, look=None)
    assert ours.rows == 1 + 8 * 5


def test_long_calls_are_left_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, (ours, _) = _table(monkeypatch, "cpu", hidden_s=0.0, said_s=6e-3)
    assert check_slope(schedule, *schedule.subjects, look=None) is None
    assert ours.rows == 0


def test_a_cell_that_does_not_tell_of_all_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, (ours, _) = _table(monkeypatch, "cpu", hidden_s=0.0)
    real = ours.ask

    def ask(request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        answer = real(request, kind, limit_s=limit_s)
        return cast(T, wire.Ticks(ticks=answer.ticks[1:])) if isinstance(answer, wire.Ticks) else answer

    ours.ask = ask  # type: ignore[method-assign]
    with pytest.raises(CellFault, match="tells of 4 of 5 calls"):
        schedule.timed.row(schedule.subjects[0], calls=5, keep=True)
