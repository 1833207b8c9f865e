"""The halves of a step are timed as whole steps are: in turns, with all samples kept and memory given back."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from tilewright.facts import codec
from tilewright.judge.client import Cell
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.timing.calls import Caller
from tilewright.judge.timing.interleave import BurstSchedule, TimedSubject
from tilewright.judge.timing.phases import measure_phases
from tilewright.judge.wire import messages as wire

T = TypeVar("T")
TICKS_NS = {"forward": 1000.0, "backward": 3000.0}


class _Ticking(Cell):
    """Answers timed calls with ticks that grow by one."""

    def __init__(self, factor: float) -> None:
        self.asked: list[Any] = []
        self._factor = factor

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        self.asked.append(request)
        answer: Any = wire.Done()
        if isinstance(request, wire.TimedCall):
            answer = wire.Tick(ns=self._factor * TICKS_NS[request.phase] + len(self.asked))
        assert isinstance(answer, kind)
        return answer


def _table(*, tight: bool) -> tuple[BurstSchedule, dict[str, _Ticking]]:
    memory = SimpleNamespace(
        pool=4, slots=1, device="cuda", tight=tight,
        sets=SimpleNamespace(slot=lambda i: (), swap=lambda swaps: None, image=lambda *_: None, place=lambda *_: None),
        described=SimpleNamespace(args=""),
    )  # fmt: skip
    cells = {"ours": _Ticking(1.0), "eager": _Ticking(2.0)}
    subjects = [TimedSubject(name, cell) for name, cell in cells.items()]
    schedule = BurstSchedule(Caller(cast(CaseMemory, memory), random.Random(1)), subjects=subjects)
    schedule.calls = {"ours": 5, "eager": 3}
    return schedule, cells


def test_all_samples_are_kept() -> None:
    schedule, cells = _table(tight=False)
    phases = measure_phases(schedule, ours="ours", names=("ours", "eager"), rounds=4)
    for phase in phases:
        assert {s.name: [len(b) for b in s.bursts_ns] for s in phase.samples} == {"ours": [5] * 4, "eager": [3] * 4}
        assert 1.8 < dict(phase.ratios)["eager"].mid < 2.0
    kept = sorted(t for p in phases for s in p.samples if s.name == "eager" for b in s.bursts_ns for t in b)
    assert kept[0] < 2 * TICKS_NS["forward"] + 7 and kept[-1] > 2 * TICKS_NS["backward"] and len(set(kept)) == 24
    assert codec.loads(codec.dumps(phases)) == phases
    assert schedule.bursts == {}, "the halves are no bursts of the whole"
    assert not any(isinstance(r, wire.Drop) for c in cells.values() for r in c.asked)


def test_where_memory_is_tight_each_turn_gives_it_back() -> None:
    schedule, cells = _table(tight=True)
    phases = measure_phases(schedule, ours="ours", names=("ours", "eager"), rounds=2)
    for name, cell in cells.items():
        calls = [type(r).__name__ for r in cell.asked if not isinstance(r, wire.Deal | wire.Clear)]
        assert calls == (["TimedCall"] * (1 + schedule.calls[name]) + ["Drop"]) * 4
    first = next(s.bursts_ns[0] for s in phases[0].samples if s.name == "ours")
    assert first[0] == TICKS_NS["forward"] + 5, "the call that takes the memory again is no sample"
