"""torch.compile as a baseline is waited for until half of a run's time has passed, and left out then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.facts.time_budget import TimeBudget
from tilewright.judge.client import CellFault
from tilewright.judge.compiled import CompiledBaseline


class Compiling:
    """A cell that never answers."""

    def __init__(self) -> None:
        self.limits_s: list[float] = []
        self.closed = False

    def post(self, request: object) -> None: ...

    def collect(self, kind: type, *, limit_s: float) -> Any:
        self.limits_s.append(limit_s)
        raise CellFault("hung", f"no answer within {limit_s:.0f} s; it was killed", source="compile")

    def close(self) -> None:
        self.closed = True


def baseline(time: TimeBudget, *, plenty: bool = True) -> tuple[CompiledBaseline, Compiling, list[str]]:
    cell, notes = Compiling(), list[str]()
    start: Any = lambda: cell  # noqa: E731
    load: Any = lambda **asked: SimpleNamespace(**asked)  # noqa: E731
    made = CompiledBaseline(start, load, on_gpu=plenty, plenty=plenty, note=notes.append, time=time)
    gradients: Any = None
    made.warm(construct_seed=1, inputs_seed=2, gradients=gradients)
    return made, cell, notes


def test_one_that_compiles_for_too_long_is_left_out_with_a_sentence() -> None:
    made, cell, notes = baseline(TimeBudget.of(60.0, spent_s=10.0, clock=lambda: 0.0))
    assert made.compiled() is None and cell.closed
    assert cell.limits_s == [35.0]
    assert notes == ["torch.compile could not be timed: not compiled within the budget"]


def test_without_a_budget_it_has_its_own_limit() -> None:
    made, cell, notes = baseline(TimeBudget())
    assert made.compiled() is None and cell.limits_s[0] > 200.0
    assert "no answer within" in notes[0]


def test_one_that_has_not_begun_does_not_begin_when_half_of_the_time_has_passed() -> None:
    made, cell, notes = baseline(TimeBudget.of(60.0, spent_s=30.0, clock=lambda: 0.0), plenty=False)
    assert made.compiled() is None and cell.limits_s == [] and not cell.closed
    assert notes == ["torch.compile could not be timed: not compiled within the budget"]
    assert made.compiled() is None and len(notes) == 1
