"""The catalog strategy, scripted: what it tunes, keeps, drops, and when it says that nothing was gained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fakes.facts import PROGRAM, context, pattern, timed
from tilewright.edges.ledger import Ledger
from tilewright.facts.move import Event, Move, Outcome, Sanitize, Stop, Try, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Sanitized, Tuned
from tilewright.facts.pattern import Bind, Choice, Match, Pattern, Recipe
from tilewright.facts.run import Limits, Matched, SearchContext
from tilewright.facts.space import Space, point
from tilewright.report import summary
from tilewright.report.story import story
from tilewright.run.drive import drive
from tilewright.search.strategies.catalog import catalog


def played(given: SearchContext, perform: Callable[[Move], Outcome], *, wall_s: float = 1.0) -> tuple[Stop, list[Move]]:
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
    stop, moves = played(context(), lambda m: None)
    assert (stop.best, moves) == (None, [])
    assert stop.why.startswith("no pattern matched")


def test_a_remembered_winner_is_not_tuned_again() -> None:
    remembered = (Choice(pattern="fused_0", point=point(unroll=2)),)
    stop, moves = played(context(pattern("fused_0"), remembered=remembered), lambda m: timed(2.0))
    assert [type(m) for m in moves] == [Try]
    assert stop.best == remembered


def test_without_tuning_the_likeliest_point_is_judged_as_it_is() -> None:
    given = replace(context(pattern("fused_0", points=3)), without=("tuning",))
    stop, moves = played(given, lambda m: timed(2.0))
    assert [type(m) for m in moves] == [Try]
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=1)),)


def test_the_fastest_point_goes_on() -> None:
    stop, _ = played(
        context(pattern("fused_0", points=3)), lambda m: tuned(m, 3) if isinstance(m, Tune) else timed(2.0)
    )
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=3)),)


def test_what_is_not_faster_beyond_noise_keeps_the_module() -> None:
    stop, _ = played(context(pattern("fused_0", points=1)), lambda m: timed(0.9))
    assert stop.best is None and "not faster beyond noise: 0.90x" in stop.why
    stop, _ = played(context(pattern("fused_0", points=1)), lambda m: timed(1.005, noise=0.01))
    assert stop.best is None and "[0.99, 1.02]" in stop.why
    hidden = replace(timed(2.0), undecided=True)
    stop, _ = played(context(pattern("fused_0", points=1)), lambda m: hidden)
    assert stop.best is None
    assert "2.00x as fast as eager [1.98, 2.02], but noise hid whether it works on what it kept" in stop.why
    assert stop.why.endswith("run it again when the machine is idle")


def sanitizing(given: SearchContext) -> SearchContext:
    return replace(given, sanitize=True)


def test_a_winner_goes_under_the_sanitizer_where_that_is_asked_for() -> None:
    def clean(move: Move) -> Outcome:
        return Sanitized(clean=("memcheck",)) if isinstance(move, Sanitize) else timed(2.0)

    stop, moves = played(sanitizing(context(pattern("fused_0", points=1))), clean)
    assert [type(m) for m in moves] == [Try, Sanitize]
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=1)),)
    for given, gain in (
        (context(pattern("fused_0", points=1)), 2.0),
        (sanitizing(context(pattern("fused_0", points=1))), 0.9),
    ):
        stop, moves = played(given, lambda m, gain=gain: timed(gain))
        assert [type(m) for m in moves] == [Try]


def test_a_winner_with_a_race_is_not_handed_over() -> None:
    def racing(move: Move) -> Outcome:
        race = Failure(stage="check", reason="sanitizer", summary="racecheck: Race in fused_0")
        return race if isinstance(move, Sanitize) else timed(2.0)

    stop, _ = played(sanitizing(context(pattern("fused_0", points=1))), racing)
    assert stop.best is None
    assert stop.why.endswith("and refused: racecheck: Race in fused_0")


def test_refused_alone_is_no_improvement() -> None:
    stop, moves = played(
        context(pattern("fused_0", points=1)), lambda m: Failure(stage="build", reason="does_not_compile", summary="")
    )
    assert stop.best is None
    assert len(moves) == 1


def test_a_pattern_that_slows_the_module_is_rolled_back() -> None:
    def perform(move: Move) -> Outcome:
        names = {c.pattern for c in move.what}
        return timed(1.5 if "fused_1" in names else 2.0)

    stop, _ = played(context(pattern("fused_0", points=1), pattern("fused_1", points=1)), perform)
    assert [c.pattern for c in stop.best] == ["fused_0"]


def test_out_of_time_it_judges_what_it_has_and_tunes_no_more() -> None:
    given = context(pattern("fused_0"), pattern("fused_1"), budget_s=10.0)
    _, moves = played(given, lambda m: tuned(m, 2) if isinstance(m, Tune) else timed(2.0), wall_s=6.0)
    assert [type(m) for m in moves] == [Tune, Try]


def test_in_training_it_says_why_nothing_is_tried() -> None:
    why = "no skeleton has a backward yet"
    known = context()
    case = replace(known.cases[0], trace_failure=why)
    training = replace(known, problem=replace(known.problem, mode="training"), cases=(case,), matched=())
    assert list(catalog(training)) == [Stop(best=None, why=why)]


def gives(made: Pattern, node: str, kind: str = "pointwise") -> Pattern:
    bind = Bind(node=node, split=(4, 8), order=(0, 1))
    return replace(made, kind=kind, matches=(Match(nodes=(node,), operands=(), outputs=(bind,)),))


def chosen(move: Try) -> list[str]:
    return [choice.pattern for choice in move.what]


GELU, LINEAR = gives(pattern("fused_0"), "gelu"), gives(pattern("fused_1"), "gelu", "product")


def test_what_a_product_does_on_its_way_out_is_neither_tuned_nor_tried_beside_it() -> None:
    """But instead of it, and tuned last: torch's product with a kernel around it may be faster."""

    def judge(move: Move) -> Outcome:
        if isinstance(move, Tune):
            return tuned(move, 2)
        return timed(3.0 if chosen(move) == ["fused_1"] else 1.5)

    stop, moves = played(context(GELU, LINEAR), judge)
    tunings = [m for m in moves if isinstance(m, Tune)]
    assert [(m.pattern, [c.pattern for c in m.recipe]) for m in tunings] == [
        ("fused_1", ["fused_1"]), ("fused_0", ["fused_0"])]  # fmt: skip
    assert [chosen(m) for m in moves if isinstance(m, Try)] == [["fused_1"], ["fused_0"]]
    assert stop.best == (Choice(pattern="fused_1", point=point(unroll=2)),)
    stop, _ = played(context(GELU, LINEAR), lambda m: tuned(m, 2) if isinstance(m, Tune) else timed(
        1.2 if chosen(m) == ["fused_1"] else 2.0))  # fmt: skip
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=2)),)
    _, moves = played(
        replace(context(GELU, LINEAR), budget_s=1.5), lambda m: tuned(m, 2) if isinstance(m, Tune) else timed(2.0)
    )
    assert [m.pattern for m in moves if isinstance(m, Tune)] == ["fused_1"], "rivals are tuned where time is left"


FIRST, SECOND = gives(pattern("fused_1"), "first", "product"), gives(pattern("fused_2"), "gelu", "product")


def pair(points: int = 1) -> Pattern:
    """A dual GEMM: it does what two products do, and spares both."""
    made = gives(pattern("fused_3", points=points), "gelu", "product")
    return replace(made, matches=(replace(made.matches[0], spared=("first", "second")),))


def test_two_products_and_torchs_with_a_kernel_around_them_are_rivals_of_a_pair() -> None:
    def judge(speeds: dict[tuple[str, ...], float], move: Move) -> Outcome:
        return tuned(move, 2) if isinstance(move, Tune) else timed(speeds[tuple(chosen(move))])

    plain, two, one = ("fused_0",), ("fused_1", "fused_2"), ("fused_3",)
    given = context(GELU, FIRST, SECOND, pair(2))
    stop, moves = played(given, partial(judge, {one: 2.0, two: 1.5, plain: 3.0}))
    assert [tuple(c.pattern for c in m.recipe) for m in moves if isinstance(m, Tune)] == [
        one, ("fused_0", "fused_1"), two, two]  # fmt: skip
    assert [tuple(chosen(m)) for m in moves if isinstance(m, Try)] == [one, two, plain]
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=2)),)
    kernels_of_two = {one: 2.0, two: 3.0, plain: 1.5, ("fused_2",): 2.5, ("fused_1", "fused_0"): 4.0, ("fused_1",): 1.0}
    stop, moves = played(given, partial(judge, kernels_of_two))
    assert [c.pattern for c in stop.best] == ["fused_1", "fused_0"], "what came in its place is left out, too"


def test_where_a_product_is_refused_what_follows_it_is_a_kernel_of_its_own() -> None:
    refused = Failure(stage="check", reason="wrong_values", summary="")

    def judge(move: Move) -> Outcome:
        if isinstance(move, Tune):
            return tuned(move, 1)
        return refused if "fused_1" in chosen(move) else timed(1.5)

    stop, moves = played(context(GELU, LINEAR, gives(pattern("fused_2"), "other")), judge)
    assert [chosen(m) for m in moves if isinstance(m, Try)][:3] == [
        ["fused_1", "fused_2"], ["fused_1"], ["fused_0"]]  # fmt: skip
    assert {c.pattern for c in stop.best} == {"fused_0", "fused_2"}


def test_a_product_that_is_not_accurate_enough_is_tried_with_all_bits() -> None:
    """Only where its values were wrong, and before anything is left to torch."""
    exact = point(split="bf16x6", unroll=1)
    space = Space(knobs=(), points=(point(split="fp16x3", unroll=1), exact))
    made = replace(gives(pattern("fused_1"), "gelu", "product"), space=space)

    def judge(reason: str, move: Move) -> Outcome:
        if isinstance(move, Tune):
            return tuned(move, 1)
        if ("split", "bf16x6") in move.what[0].point:
            return timed(2.0)
        return Failure(stage="check", reason=reason, summary="") if chosen(move) == ["fused_1"] else timed(1.5)

    stop, moves = played(context(GELU, made), partial(judge, "wrong_values"))
    assert [chosen(m) for m in moves if isinstance(m, Try)] == [["fused_1"], ["fused_1"], ["fused_0"]]
    assert stop.best == (Choice(pattern="fused_1", point=exact),)
    stop, moves = played(context(GELU, made), partial(judge, "crashed"))
    assert [chosen(m) for m in moves if isinstance(m, Try)] == [["fused_1"], ["fused_0"]]


def test_a_kernel_with_other_places_of_its_own_stays() -> None:
    both = gives(pattern("fused_0"), "gelu")
    both = replace(both, matches=(*both.matches, *gives(pattern("fused_0"), "another").matches))
    _, moves = played(context(both, LINEAR), lambda m: tuned(m, 1) if isinstance(m, Tune) else timed(2.0))
    assert chosen(next(m for m in moves if isinstance(m, Try))) == ["fused_0", "fused_1"]


def test_what_algebra_makes_of_the_module_is_judged_beside_it_and_kept_where_it_wins() -> None:
    less = (Matched(case=0, patterns=(pattern("fused_1", points=1),), unmatched=()),)
    given = replace(context(pattern("fused_0", points=1)), rewritten=less)
    plain, rewritten = ((Choice(pattern=f"fused_{i}", point=point(unroll=1)),) for i in (0, 1))

    def judged(speeds: dict[Recipe, Outcome]) -> tuple[Stop, list[object]]:
        stop, moves = played(given, lambda m: speeds[m.what] if isinstance(m, Try) else None)  # type: ignore[index]
        return stop, [m.what for m in moves if isinstance(m, Try)]

    refused = Failure(stage="check", reason="wrong_values", summary="too far off")
    for plainly, by_algebra, best in ((3.0, timed(20.0), rewritten), (3.0, timed(2.0), plain), (3.0, refused, plain)):
        stop, tries = judged({plain: timed(plainly), rewritten: by_algebra})
        assert (stop.best, tries) == (best, [plain, rewritten])
    stop, tries = judged({plain: refused, rewritten: timed(2.0)})
    assert (stop.best, tries) == (rewritten, [plain, rewritten])


def slowed(by: dict[str, float], move: Move) -> Outcome:
    """Each pattern halves what eager takes and is left, or does what it is told to."""
    if isinstance(move, Tune):
        return tuned(move, 1)
    ratio = 1.0
    for name in chosen(move):
        ratio *= by.get(name, 1.2)
    return timed(ratio)


@pytest.mark.parametrize(("count", "slow", "most"), [(7, "fused_4", 12), (20, "fused_13", 30), (20, "fused_0", 30)])
def test_of_many_patterns_the_one_that_slows_the_module_is_found_by_halves(count: int, slow: str, most: int) -> None:
    patterns = [pattern(f"fused_{i}", points=1) for i in range(count)]
    stop, moves = played(context(*patterns), partial(slowed, {slow: 0.02}))
    assert {c.pattern for c in stop.best} == {p.id for p in patterns} - {slow}
    tries = [frozenset(chosen(m)) for m in moves]
    assert len(tries) == len(set(tries)) <= most
    whole = tries.index(frozenset(c.pattern for c in stop.best))
    assert whole <= 2 * count.bit_length(), "a dozen judgements, not one for each pattern"
    shares = {frozenset(c.pattern for c in stop.best) - t for t in tries}
    assert {frozenset([c.pattern]) for c in stop.best} <= shares, "each is left out by itself, too"


def test_one_that_slows_its_half_less_than_others_speed_it_up_is_found_by_itself() -> None:
    patterns = [pattern(f"fused_{i}", points=1) for i in range(7)]
    stop, moves = played(context(*patterns), partial(slowed, {"fused_2": 0.9}))
    assert {c.pattern for c in stop.best} == {f"fused_{i}" for i in (0, 1, 3, 4, 5, 6)}
    assert [len(m.what) for m in moves[1:3]] == [3, 4], "halves first"
    assert "fused_2" not in chosen(moves[4]), "then the half that gains less, what comes first in it first"


def test_halves_that_slow_the_module_are_left_out_as_a_whole() -> None:
    patterns = [pattern(f"fused_{i}", points=1) for i in range(8)]
    stop, _ = played(context(*patterns), partial(slowed, {f"fused_{i}": 0.8 for i in range(1, 8, 2)}))
    assert {c.pattern for c in stop.best} == {f"fused_{i}" for i in range(0, 8, 2)}


def test_leaving_out_ends_with_the_budget_and_begins_with_what_takes_longest() -> None:
    """So much of the report is then not measured, and says so."""
    patterns = [pattern(f"fused_{i}", points=1) for i in range(7)]
    large = replace(PROGRAM, domain=(4096, 8), operands=(replace(PROGRAM.operands[0], shape=(4096, 8)),))
    patterns[5] = replace(patterns[5], program=large)
    for limited in (
        replace(context(*patterns), budget_s=4.0), replace(context(*patterns), limits=Limits(tries=4)),
    ):  # fmt: skip
        stop, moves = played(limited, partial(slowed, {}))
        assert len(moves) == 4 and len(stop.best) == 7
        assert "fused_5" not in chosen(moves[1]) and "fused_5" not in chosen(moves[3]), "first of its half"
        events = [Event(seq=i, move=m, outcome=slowed({}, m), wall_s=1.0) for i, m in enumerate(moves)]
        told = summary(limited, [*events, Event(seq=9, move=stop, outcome=None, wall_s=0.0)], candidate_dir="")
        assert [w["pattern"] for w in told["attribution"] if w["without"] is not None] == ["fused_5"]
        rows = story(limited, [*events, Event(seq=9, move=stop, outcome=None, wall_s=0.0)]).worth
        assert [r.without for r in rows].count("not measured") == 6


def test_what_is_left_out_of_many_patterns_replays(tmp_path: Path) -> None:
    given = context(*(pattern(f"fused_{i}", points=1) for i in range(20)))
    journal = tmp_path / "run.db"
    with Ledger(journal) as ledger:
        first = drive(catalog(given), ledger=ledger, perform=partial(slowed, {"fused_7": 0.1}), watch=lambda e: None)
        made = len(ledger.events())
    with Ledger(journal) as ledger:
        again = drive(catalog(given), ledger=ledger, perform=not_again, watch=lambda e: None)
        assert again == first and len(ledger.events()) == made
    assert "fused_7" not in {c.pattern for c in first.best}


def not_again(move: Move) -> Outcome:
    raise AssertionError(move)


def counted(given: SearchContext, opened_s: float = 5.0) -> SearchContext:
    """A context that counts its time."""
    return replace(given, opened_s=opened_s)


def test_what_is_not_tuned_is_judged_first_where_the_time_counts() -> None:
    given = counted(context(pattern("fused_0", points=3)))
    found = {1: timed(1.5), 3: timed(2.0)}

    def judge(move: Move) -> Outcome:
        if isinstance(move, Tune):
            return tuned(move, 3)
        assert isinstance(move, Try) and isinstance(move.what, tuple)
        return found[dict(move.what[0].point)["unroll"]]  # type: ignore[index]

    stop, moves = played(given, judge)
    assert [type(m) for m in moves] == [Try, Tune, Try]
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=3)),)
    found[3] = timed(1.2)  # in the module it is slower than it was among points
    stop, _ = played(given, judge)
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=1)),)


def test_nothing_is_begun_that_leaves_no_time_for_a_judgement() -> None:
    given = counted(context(pattern("fused_0", points=3), budget_s=100.0), opened_s=10.0)
    stop, moves = played(given, lambda m: timed(2.0), wall_s=50.0)
    assert [type(m) for m in moves] == [Try], "after 60 s of 100 another judgement of 50 s would overrun"
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=1)),)


def test_what_was_refused_early_is_not_judged_again() -> None:
    given = counted(replace(context(pattern("fused_0"), pattern("fused_1")), without=("tuning",)))
    bad = Choice(pattern="fused_1", point=point(unroll=1))

    def judge(move: Move) -> Outcome:
        assert isinstance(move, Try) and isinstance(move.what, tuple)
        return Failure(stage="check", reason="wrong_values", summary="no") if bad in move.what else timed(2.0)

    stop, moves = played(given, judge)
    recipes = [m.what for m in moves if isinstance(m, Try)]
    assert len(recipes) == len(set(recipes)) and len(recipes[0]) == 2
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=1)),)
