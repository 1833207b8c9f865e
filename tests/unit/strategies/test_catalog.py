"""The catalog strategy, scripted: what it tunes, keeps, drops, and when it says that nothing was gained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fakes.facts import brief, pattern, timed
from tilewright.facts.move import Event, Move, Outcome, Sanitize, Stop, Try, Tune
from tilewright.facts.outcome import Failure, Interval, PointTime, Sanitized, Tuned
from tilewright.facts.pattern import Bind, Choice, Pattern, Recipe, Site
from tilewright.facts.run import Brief, Matched
from tilewright.facts.space import Space, point
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


def test_without_tuning_the_likeliest_point_is_judged_as_it_is() -> None:
    given = replace(brief(pattern("fused_0", points=3)), without=("tuning",))
    stop, moves = played(given, lambda m: timed(2.0))
    assert [type(m) for m in moves] == [Try]
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=1)),)


def test_the_fastest_point_goes_on() -> None:
    stop, _ = played(brief(pattern("fused_0", points=3)), lambda m: tuned(m, 3) if isinstance(m, Tune) else timed(2.0))
    assert stop.best == (Choice(pattern="fused_0", point=point(unroll=3)),)


def test_what_is_not_faster_beyond_noise_keeps_the_module() -> None:
    stop, _ = played(brief(pattern("fused_0", points=1)), lambda m: timed(0.9))
    assert stop.best is None and "not faster beyond noise: 0.90x" in stop.why
    stop, _ = played(brief(pattern("fused_0", points=1)), lambda m: timed(1.005, noise=0.01))
    assert stop.best is None and "[0.99, 1.02]" in stop.why
    hidden = replace(timed(2.0), undecided=True)
    stop, _ = played(brief(pattern("fused_0", points=1)), lambda m: hidden)
    assert stop.best is None
    assert "2.00x as fast as eager [1.98, 2.02], but noise hid whether it works on what it kept" in stop.why
    assert stop.why.endswith("run it again when the machine is idle")


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


def gives(made: Pattern, node: str, kind: str = "pointwise") -> Pattern:
    bind = Bind(node=node, split=(4, 8), order=(0, 1))
    return replace(made, kind=kind, sites=(Site(nodes=(node,), operands=(), outputs=(bind,)),))


def chosen(move: Try) -> list[str]:
    return [choice.pattern for choice in move.what]


GELU, LINEAR = gives(pattern("fused_0"), "gelu"), gives(pattern("fused_1"), "gelu", "product")


def test_what_a_product_does_on_its_way_out_is_neither_tuned_nor_tried_beside_it() -> None:
    """But instead of it: torch's product with a kernel around it may be faster."""

    def judge(move: Move) -> Outcome:
        if isinstance(move, Tune):
            return tuned(move, 2)
        return timed(3.0 if chosen(move) == ["fused_1"] else 1.5)

    stop, moves = played(brief(GELU, LINEAR), judge)
    assert [m.pattern for m in moves if isinstance(m, Tune)] == ["fused_1"]
    assert all([c.pattern for c in m.recipe] == ["fused_1"] for m in moves if isinstance(m, Tune))
    assert [chosen(m) for m in moves if isinstance(m, Try)] == [["fused_1"], ["fused_0"]]
    assert stop.best == (Choice(pattern="fused_1", point=point(unroll=2)),)
    stop, _ = played(brief(GELU, LINEAR), lambda m: tuned(m, 2) if isinstance(m, Tune) else timed(
        1.2 if chosen(m) == ["fused_1"] else 2.0))  # fmt: skip
    assert [c.pattern for c in stop.best] == ["fused_0"]


def test_where_a_product_is_refused_what_follows_it_is_a_kernel_of_its_own() -> None:
    refused = Failure(stage="check", reason="wrong_values", summary="")

    def judge(move: Move) -> Outcome:
        if isinstance(move, Tune):
            return tuned(move, 1)
        return refused if "fused_1" in chosen(move) else timed(1.5)

    stop, moves = played(brief(GELU, LINEAR, gives(pattern("fused_2"), "other")), judge)
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

    stop, moves = played(brief(GELU, made), partial(judge, "wrong_values"))
    assert [chosen(m) for m in moves if isinstance(m, Try)] == [["fused_1"], ["fused_1"], ["fused_0"]]
    assert stop.best == (Choice(pattern="fused_1", point=exact),)
    stop, moves = played(brief(GELU, made), partial(judge, "crashed"))
    assert [chosen(m) for m in moves if isinstance(m, Try)] == [["fused_1"], ["fused_0"]]


def test_a_kernel_with_other_places_of_its_own_stays() -> None:
    both = gives(pattern("fused_0"), "gelu")
    both = replace(both, sites=(*both.sites, *gives(pattern("fused_0"), "another").sites))
    _, moves = played(brief(both, LINEAR), lambda m: tuned(m, 1) if isinstance(m, Tune) else timed(2.0))
    assert chosen(next(m for m in moves if isinstance(m, Try))) == ["fused_0", "fused_1"]


def test_what_algebra_makes_of_the_module_is_judged_beside_it_and_kept_where_it_wins() -> None:
    less = (Matched(case=0, patterns=(pattern("fused_1", points=1),), unmatched=()),)
    given = replace(brief(pattern("fused_0", points=1)), rewritten=less)
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
