"""Which points are measured: everything, a few where another toolchain's winner is known, nothing that is known."""

from __future__ import annotations

from dataclasses import replace

from fakes.facts import context, pattern
from tilewright.facts.move import Event, Move, Stop, Try, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Tuned
from tilewright.facts.pattern import Choice
from tilewright.facts.space import Point, point
from tilewright.search.strategies.catalog import catalog
from tilewright.search.strategies.tuning import FEW_POINTS, tune, winning


def fastest(move: Tune, unroll: int) -> Tuned:
    times = {p: 1.0 if p == point(unroll=unroll) else 2.0 for p in move.points}
    return Tuned(points=tuple(PointTime(point=p, time_ns=Interval(low=t, mid=t, high=t)) for p, t in times.items()))


def tunings(strategy: object, unroll: int, *, wall_s: float = 1.0) -> list[Tune]:
    """The Tune moves up to the first other one; `unroll` is the fastest wherever it is measured."""
    moves: list[Tune] = []
    move: Move = next(strategy)
    while isinstance(move, Tune):
        moves.append(move)
        move = strategy.send(Event(seq=len(moves), move=move, outcome=fastest(move, unroll), wall_s=wall_s))
    return moves


def points(move: Tune) -> list[Point]:
    return list(move.points)


def chosen(pattern_id: str, unroll: int) -> Choice:
    return Choice(pattern=pattern_id, point=point(unroll=unroll))


def test_another_toolchains_winner_is_tried_first_among_a_few() -> None:
    given = context(pattern("fused_0", points=9), hinted=(chosen("fused_0", 7),))
    (move,) = tunings(catalog(given), 7)
    assert points(move) == [point(unroll=u) for u in (7, 1, 2, 3)] and len(move.points) == FEW_POINTS


def test_a_hint_that_no_space_lists_is_tried_too_and_stands_where_there_is_no_time() -> None:
    given = context(pattern("fused_0", points=2), hinted=(chosen("fused_0", 7),))
    (move,) = tunings(catalog(given), 7)
    assert points(move) == [point(unroll=u) for u in (7, 1, 2)]
    late = catalog(context(pattern("fused_0", points=2), hinted=(chosen("fused_0", 7),), budget_s=0.0))
    assert next(late).what == (chosen("fused_0", 7),)


def test_tune_measures_all_points_whatever_is_known() -> None:
    given = context(
        pattern("fused_0", points=6), pattern("fused_1", points=6), pattern("fused_2", points=1),
        remembered=(chosen("fused_0", 2),), hinted=(chosen("fused_1", 5),),
    )  # fmt: skip
    moves = tunings(tune(given), 4)
    assert [m.pattern for m in moves] == ["fused_0", "fused_1"]
    assert points(moves[0]) == [point(unroll=u) for u in (2, 1, 3, 4, 5, 6)]
    assert points(moves[1]) == [point(unroll=u) for u in (5, 1, 2, 3, 4, 6)]
    assert chosen("fused_0", 4) in moves[1].recipe, "the winner so far goes on"


def test_tune_begins_no_pattern_after_its_budget_and_hands_nothing_over() -> None:
    given = context(*(pattern(f"fused_{i}") for i in range(5)), budget_s=2.5)
    strategy = tune(given)
    assert len(tunings(strategy, 1)) == 3
    strategy = tune(context(pattern("fused_0")))
    move = next(strategy)
    outcome = Failure(stage="build", reason="does_not_load", summary="")
    last = strategy.send(Event(seq=0, move=move, outcome=outcome, wall_s=1.0))
    assert isinstance(last, Stop) and last.best is None


def test_the_first_of_equals_wins_and_nothing_where_none_ran() -> None:
    same = Interval(low=1.0, mid=1.0, high=1.0)
    ran = tuple(PointTime(point=point(unroll=u), time_ns=same) for u in (3, 1))
    assert winning(Tuned(points=ran)) == point(unroll=3)
    assert winning(Tuned(points=(PointTime(point=(), time_ns=None, failure="no"),))) is None


def test_patterns_of_one_title_keep_winners_of_their_own() -> None:
    strategy = catalog(context(*(replace(pattern(f"fused_{i}", points=6), title="linear") for i in range(2))))
    move: Move = next(strategy)
    while isinstance(move, Tune):
        unroll = {"fused_0": 4, "fused_1": 6}[move.pattern]
        move = strategy.send(Event(seq=0, move=move, outcome=fastest(move, unroll), wall_s=1.0))
    assert isinstance(move, Try) and move.what == (chosen("fused_0", 4), chosen("fused_1", 6))
