"""The catalog strategy, scripted: what it tunes, keeps, drops, and when it says that nothing was gained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fakes.facts import brief, pattern, timed
from tilewright.facts.move import Event, Move, Outcome, Sanitize, Stop, Try, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Sanitized, Tuned
from tilewright.facts.pattern import Choice
from tilewright.facts.run import Brief
from tilewright.facts.space import point
from tilewright.strategies.catalog import catalog


def played(given: Brief, perform: Callable[[Move], Outcome], *, wall_s: float = 1.0) -> tuple[Stop, list[Move]]:
    moves: list[Move] = []
    strategy = catalog(given)
    move = next(strategy)
    while not isinstance(move, Stop):
        moves.append(move)
        move = strategy.send(Event(seq=len(moves), move=move, outcome=perform(move), wall_s=wall_s))
    return move, moves


def tuned(move: Tune, fastest: int) -> Tuned:
    return Tuned(
        points=tuple(
            PointTime(point=p, time_ns=Interval(low=1.0, mid=1.0 if p == point(unroll=fastest) else 2.0, high=3.0))
            for p in move.points
        )
    )


def test_nothing_matched_stops_at_once_with_the_reason() -> None:
    stop, moves = played(brief(), lambda m: None)
    assert (stop.best, moves) == (None, [])
    assert stop.why.startswith("no pattern matched")


def test_a_remembered_winner_is_not_tuned_again() -> None:
    remembered = (Choice(pattern="fused_0", point=point(unroll=2)),)
    stop, moves = played(brief(pattern("fused_0"), remembered=remembered), lambda m: timed(2.0))
    assert [type(m) for m in moves] == [Try]
    assert stop.best == remembered


def test_the_fastest_point_goes_on() -> None:
    stop, _ = played(brief(pattern("fused_0", points=3)), lambda m: tuned(m, 3) if isinstance(m, Tune) else timed(2.0))
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=3)),)


def test_what_is_not_faster_beyond_noise_keeps_the_module() -> None:
    stop, _ = played(brief(pattern("fused_0", points=1)), lambda m: timed(0.9))
    assert stop.best is None and "not faster beyond noise: 0.90x" in stop.why
    stop, _ = played(brief(pattern("fused_0", points=1)), lambda m: timed(1.005, noise=0.01))
    assert stop.best is None and "[0.99, 1.02]" in stop.why


def sanitizing(given: Brief) -> Brief:
    return replace(given, sanitize=True)


def test_a_winner_goes_under_the_sanitizer_where_that_is_asked_for() -> None:
    def clean(move: Move) -> Outcome:
        return Sanitized(clean=("memcheck",)) if isinstance(move, Sanitize) else timed(2.0)

    stop, moves = played(sanitizing(brief(pattern("fused_0", points=1))), clean)
    assert [type(m) for m in moves] == [Try, Sanitize]
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=1)),)
    for given, gain in (
        (brief(pattern("fused_0", points=1)), 2.0),
        (sanitizing(brief(pattern("fused_0", points=1))), 0.9),
    ):
        stop, moves = played(given, lambda m, gain=gain: timed(gain))
        assert [type(m) for m in moves] == [Try]


def test_a_winner_with_a_race_is_not_handed_over() -> None:
    def racing(move: Move) -> Outcome:
        race = Failure(stage="check", reason="sanitizer", summary="racecheck: Race in fused_0")
        return race if isinstance(move, Sanitize) else timed(2.0)

    stop, _ = played(sanitizing(brief(pattern("fused_0", points=1))), racing)
    assert stop.best is None
    assert stop.why.endswith("and refused: racecheck: Race in fused_0")


def test_refused_alone_is_no_improvement() -> None:
    stop, moves = played(
        brief(pattern("fused_0", points=1)), lambda m: Failure(stage="build", reason="does_not_compile", summary="")
    )
    assert stop.best is None
    assert len(moves) == 1


def test_a_pattern_that_slows_the_module_is_rolled_back() -> None:
    def perform(move: Move) -> Outcome:
        names = {c.pattern for c in move.what}
        return timed(1.5 if "fused_1" in names else 2.0)

    stop, _ = played(brief(pattern("fused_0", points=1), pattern("fused_1", points=1)), perform)
    assert [c.pattern for c in stop.best] == ["fused_0"]


def test_out_of_time_it_judges_what_it_has_and_tunes_no_more() -> None:
    given = brief(pattern("fused_0"), pattern("fused_1"), budget_s=10.0)
    _, moves = played(given, lambda m: tuned(m, 2) if isinstance(m, Tune) else timed(2.0), wall_s=6.0)
    assert [type(m) for m in moves] == [Tune, Try]


def test_in_training_it_says_why_nothing_is_tried() -> None:
    why = "no skeleton has a backward yet"
    known = brief()
    case = replace(known.cases[0], trace_failure=why)
    training = replace(known, problem=replace(known.problem, mode="training"), cases=(case,), matched=())
    assert list(catalog(training)) == [Stop(best=None, why=why)]
