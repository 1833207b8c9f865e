"""Points beyond those that a Space names: found, told apart from drift between batches, no more than pay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from fakes.facts import context, pattern
from tilewright.facts.errors import UserError
from tilewright.facts.move import Event, Move, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Tuned
from tilewright.facts.pattern import Pattern
from tilewright.facts.problem import Problem
from tilewright.facts.space import Knob, Point, Space, point
from tilewright.run import tune as flow
from tilewright.search.strategies.searching import BATCH, size
from tilewright.search.strategies.tuning import tune, winning

KNOBS = (
    Knob(name="threads", values=(32, 64, 128, 256, 512, 1024), about=""),
    Knob(name="unroll", values=(1, 2, 4, 8, 16), about=""),
    Knob(name="where", values=("auto", "registers", "shared"), about=""),
    Knob(name="early", values=(False, True), about=""),
)


def wide(*named: Point) -> Pattern:
    return dataclasses.replace(pattern("fused_0"), space=Space(knobs=KNOBS, points=named or (at(),)))


def at(threads: int = 32, unroll: int = 1, where: str = "auto", early: bool = False) -> Point:
    return point(threads=threads, unroll=unroll, where=where, early=early)


def slower(p: Point) -> float:
    """Least, 1.0, at (256, 8, "shared", True)."""
    at = dict(p)
    threads, unroll = (KNOBS[i].values.index(at[n]) for i, n in ((0, "threads"), (1, "unroll")))
    return (
        1 + 0.2 * abs(threads - 3) + 0.15 * abs(unroll - 3) + 0.3 * (at["where"] != "shared") + 0.1 * (not at["early"])
    )


def measured(move: Tune, time: Callable[[Point], float | None], drift: float = 1.0) -> Tuned:
    found = []
    for p in move.points:
        t = time(p)
        ns = None if t is None else Interval(low=drift * t, mid=drift * t, high=drift * t)
        found.append(PointTime(point=p, time_ns=ns, failure="" if ns else "no registers are left"))
    return Tuned(points=tuple(found))


def played(given: Pattern, trials: int, outcome: Callable[[Tune], Tuned | Failure], **more: object) -> list[Event]:
    strategy, events = tune(context(given, **more), trials), []
    move: Move = next(strategy)
    while isinstance(move, Tune):
        events.append(Event(seq=len(events), move=move, outcome=outcome(move), wall_s=1.0))
        move = strategy.send(events[-1])
    return events


def asked(events: list[Event]) -> list[Point]:
    """Without the best so far, which stands first in every batch."""
    return [p for i, e in enumerate(events) for p in e.move.points[min(i, 1) :]]


def test_a_faster_point_is_found_among_many_with_few_trials() -> None:
    assert size(wide().space) == 180
    events = played(wide(), 64, lambda m: measured(m, slower))
    best = winning(events[-1].outcome)
    assert best is not None and slower(best) < 1.3 < slower(at())
    assert len(asked(events)) == len(set(asked(events))) <= 65, "nothing is measured twice"
    for event in events[1:]:
        assert event.move.points[0] in asked(events)
        assert 2 <= len(event.move.points) <= BATCH + 1


def test_the_same_answers_lead_to_the_same_questions() -> None:
    first, second = (played(wide(), 2 * BATCH, lambda m: measured(m, slower)) for _ in range(2))
    assert [e.move for e in first] == [e.move for e in second]


def test_times_of_a_batch_are_told_against_the_best_of_the_one_before() -> None:
    clocks = iter((1.0, 3.0, 0.3, 2.0, 0.5, *[1.0] * 50))
    events = played(wide(), 64, lambda m: measured(m, slower, next(clocks)))
    best = winning(events[-1].outcome)
    assert best is not None and slower(best) < 1.3


def test_it_ends_where_nothing_is_gained_or_nothing_is_left_or_time_is_over() -> None:
    assert len(played(wide(), 64, lambda m: measured(m, lambda p: 1.0))) == 1 + 3
    few = dataclasses.replace(wide(), space=Space(knobs=KNOBS[3:], points=(point(early=False), point(early=True))))
    assert len(played(few, 64, lambda m: measured(m, lambda p: 1.0))) == 1
    assert len(played(wide(), 64, lambda m: measured(m, slower), budget_s=2.0)) == 2
    assert len(played(wide(), 0, lambda m: measured(m, slower))) == 0, "one point, and no more are wanted"


def test_points_that_fail_are_not_asked_for_again() -> None:
    events = played(wide(at(), at(64)), 40, lambda m: measured(m, lambda p: None if dict(p)["early"] else slower(p)))
    assert len(asked(events)) == len(set(asked(events)))
    assert winning(events[-1].outcome) is not None
    broken = Failure(stage="tune", reason="crashed", summary="")
    assert len(played(wide(), 40, lambda m: broken if len(m.points) > 1 else measured(m, slower))) == 2
    assert len(played(wide(), 40, lambda m: measured(m, lambda p: None))) == 1, "there is nothing to compare with"


def test_without_optuna_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(flow, "find_spec", lambda name: None)
    problem = Problem(name="p", path="p.py", source="", target="cpu")
    with pytest.raises(UserError, match=r"tilewright\[search\]"):
        flow.tune(problem, cache=tmp_path, budget_s=1.0, seed=0, say=print, trials=1)  # type: ignore[arg-type]
