"""What follows from a coding agent's moves: what the library starts from, knobs turned, the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes.facts import context, pattern, timed
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.move import Event, Move, Outcome, Sanitize, Stop, Try, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Sanitized, Tuned
from tilewright.facts.pattern import Choice
from tilewright.facts.space import point
from tilewright.search.strategies.agent import attempts, best_of, ended, library, tuned
from tilewright.search.strategies.tuning import Steps

WRONG = Failure(stage="check", reason="wrong_values", summary="output 0")
BRIEF = context(pattern("fused_0"), pattern("fused_1", points=1))


def code(text: str) -> Candidate:
    return Candidate(files=(SourceFile(path="model.py", text=f"class ModelNew: ...\n{text}\n"),))


def events(*pairs: tuple[Move, Outcome]) -> tuple[Event, ...]:
    return tuple(Event(seq=i, move=move, outcome=outcome, wall_s=2.0) for i, (move, outcome) in enumerate(pairs))


def carried(steps: Steps[None], judge: Callable[[Move], Outcome]) -> tuple[Event, ...]:
    made: list[Event] = []
    try:
        move = next(steps)
        while True:
            assert not isinstance(move, tuple)
            made.append(Event(seq=len(made), move=move, outcome=judge(move), wall_s=1.0))
            move = steps.send(made[-1])
    except StopIteration:
        return tuple(made)


def test_the_library_starts_from_what_won_before() -> None:
    known = (Choice(pattern="fused_0", point=point(unroll=2)),)
    first = (("fused_0", point(unroll=1)), ("fused_1", point(unroll=1)))
    assert [(c.pattern, c.point) for c in library(BRIEF)] == list(first)
    for remembered in ({"remembered": known}, {"hinted": known}):
        assert library(replace(BRIEF, **remembered))[0].point == point(unroll=2)
    assert library(context()) == ()


def test_the_best_gained_most_in_its_own_judgement() -> None:
    slow, fast, wrong = code("slow"), code("fast"), code("wrong")
    seen = events((Try(what=slow, why=""), timed(1.5)), (Try(what=wrong, why=""), WRONG),
                  (Sanitize(what=slow), Sanitized(clean=())), (Try(what=fast, why=""), timed(3.0)))  # fmt: skip
    best = best_of(seen)
    assert best is not None and best[0] == fast and [e.seq for e in attempts(seen)] == [0, 1, 3]
    assert best_of(seen[1:3]) is None


def test_the_librarys_kernels_are_measured_in_turn_and_judged_where_another_setting_won() -> None:
    def judge(move: Move) -> Outcome:
        if isinstance(move, Tune):
            ns = [10.0 / (1 + i) for i in range(len(move.points))]
            times = [Interval(low=t, mid=t, high=t) for t in ns]
            return Tuned(points=tuple(PointTime(point=p, time_ns=t) for p, t in zip(move.points, times, strict=True)))
        return timed(2.0)

    (attempt,) = events((Try(what=library(BRIEF), why="the library"), timed(1.5)))
    sweep, try_ = carried(tuned(BRIEF, attempt, left_s=500.0, over=str), judge)
    assert isinstance(sweep.move, Tune) and sweep.move.pattern == "fused_0"  # fused_1 has no choice
    assert isinstance(try_.move, Try) and {c.pattern: c.point for c in try_.move.what}["fused_0"] == point(unroll=2)
    assert (
        carried(tuned(BRIEF, attempt, left_s=0.0, over=str), judge) == ()
    )  # no time: nothing else than what was judged


def test_knobs_in_the_text_are_turned_from_the_best_on_and_no_further_than_the_budget() -> None:
    def judge(move: Move) -> Outcome:
        assert isinstance(move, Try) and isinstance(move.what, Candidate)
        text = move.what.files[0].text
        return WRONG if "TILE = 32" in text else timed(4.0 if "TILE = 128" in text else 2.0)

    start = code("TILE = 64  # knob: 32, 64, 128\nUNROLL = 1  # knob: 1, 2")
    (attempt,) = events((Try(what=start, why="mine"), timed(2.0)))
    made = carried(tuned(BRIEF, attempt, left_s=9.0, over=str), judge)
    assert [e.move.why for e in made] == ["knob TILE = 32", "knob TILE = 128", "knob UNROLL = 2"]
    assert "TILE = 128" in made[-1].move.what.files[0].text  # the faster one stayed
    over = iter(["", "the time is used up"])
    assert len(carried(tuned(BRIEF, attempt, left_s=9.0, over=lambda: next(over)), judge)) == 1


@pytest.mark.parametrize(
    ("seen", "sanitized", "kinds", "said"),
    [
        ((), Sanitized(clean=()), [Stop], "bored; nothing was tried"),
        (((Try(what=code("bad"), why=""), WRONG),), Sanitized(clean=()), [Stop], "bored; the judge refused all 1"),
        (((Try(what=code("as fast"), why=""), timed(1.0)),), Sanitized(clean=()), [Stop], "not faster beyond noise"),
        (((Try(what=code("fast"), why=""), timed(2.0)),), Sanitized(clean=("memcheck",)), [Sanitize, Stop], "2.00x as"),
        (((Try(what=code("fast"), why=""), timed(2.0)),), WRONG, [Sanitize, Stop], "and refused: output 0"),
    ],
)
def test_the_end_hands_over_what_is_faster_and_clean(
    seen: tuple[tuple[Move, Outcome], ...], sanitized: Outcome, kinds: list[type], said: str
) -> None:
    made = carried(ended(replace(BRIEF, sanitize=True), events(*seen), "bored"), lambda move: sanitized)
    stop = made[-1].move
    assert [type(e.move) for e in made] == kinds and isinstance(stop, Stop) and said in stop.why
    assert (stop.best is not None) == (kinds[0] is Sanitize and sanitized is not WRONG)
