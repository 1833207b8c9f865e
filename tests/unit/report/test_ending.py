"""How a run ended: improved only beyond noise and when judged, failed only when nothing could be judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.runs import FUSED, IMPROVED, NOTHING, RECIPE, REFUSAL, REFUSED, SLOWER, TUNE, TUNED, context, events, timed
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.move import Event, Sanitize, Stop, Try
from tilewright.facts.outcome import Failure, Interval, PointTime, Sanitized, Tuned
from tilewright.report.ending import ending, floor_share, fused, tuning_of
from tilewright.report.objects import summary

GIVEN = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: ..."),))


@pytest.mark.parametrize(
    ("run", "status", "reason"),
    [
        (IMPROVED, "improved", "faster"),
        (SLOWER, "no_improvement", "not_faster"),
        (NOTHING, "no_improvement", "nothing_found"),
        (REFUSED, "failed", "wrong_values"),
        (IMPROVED[:-1], "unfinished", "unfinished"),
        ((), "unfinished", "unfinished"),
    ],
)
def test_status_and_reason(run: tuple[Event, ...], status: str, reason: str) -> None:
    end = ending(context(), run)
    assert (end.status, end.verdict.reason) == (status, reason)
    assert end.verdict.accepted == (reason in ("faster", "not_faster")), "the judge took it, faster or not"
    assert end.verdict.summary and "\n" not in end.verdict.summary


def test_a_ratio_whose_interval_reaches_one_is_no_improvement() -> None:
    for ratio, spread, status in (
        (1.05, 0.06, "no_improvement"),
        (1.05, 0.045, "no_improvement"),  # clears 1, by less than two equal processes may differ
        (1.05, 0.03, "improved"),
        (0.9, 0.01, "no_improvement"),
    ):
        run = events((Try(what=GIVEN, why=""), timed(ratio, spread)), (Stop(best=GIVEN, why=""), None))
        end = ending(context(), run)
        assert end.status == status
        assert end.verdict.accepted, "the judge took it, faster or not"
        assert end.timed is not None and end.recipe == ()


def test_the_result_is_the_last_judgement_of_what_stop_names() -> None:
    run = events(
        (Try(what=RECIPE, why=""), timed(9.0)),
        (Try(what=RECIPE, why="again"), timed(1.2)),
        (Try(what=(), why=""), timed(1.0)),
        (Stop(best=RECIPE, why=""), None),
    )
    end = ending(context(), run)
    assert end.timed == timed(1.2) == end.seen
    assert ending(context(), SLOWER).timed is None
    assert ending(context(), SLOWER).seen == timed(1.005), "the baselines are told even when nothing was kept"


def test_what_the_sanitizer_found_decides_and_is_told() -> None:
    clean = Sanitized(clean=("memcheck", "racecheck"), notes=("racecheck: a remark",))
    race = Failure(stage="check", reason="sanitizer", summary="racecheck: Race in mine", excerpt="Race ...")
    tried, asked = (Try(what=GIVEN, why=""), timed(2.0)), Sanitize(what=GIVEN)
    end = ending(context(), events(tried, (asked, clean), (Stop(best=GIVEN, why=""), None)))
    assert (end.status, end.sanitized) == ("improved", clean)
    end = ending(context(), events(tried, (asked, race), (Stop(best=None, why=""), None)))
    assert (end.status, end.timed, end.sanitized) == ("failed", None, None)
    assert (end.verdict.reason, end.verdict.excerpt) == ("sanitizer", "Race ...")
    assert not end.verdict.accepted


def test_a_refused_candidate_is_the_verdict_with_its_excerpt() -> None:
    verdict = ending(context(), REFUSED).verdict
    assert (verdict.stage, verdict.summary, verdict.excerpt) == ("check", REFUSAL.summary, REFUSAL.excerpt)
    assert verdict.line == "refused in check, wrong values: output 0 is off by 3.0"
    assert ending(context(), NOTHING).verdict.line == "no pattern matched"


def test_a_failure_beside_an_accepted_candidate_is_not_the_runs() -> None:
    run = events(
        (Try(what=RECIPE, why=""), REFUSAL), (Try(what=(), why=""), timed(1.0)), (Stop(best=None, why="slower"), None)
    )
    assert ending(context(), run).status == "no_improvement"


def test_points_that_all_fail_are_a_failure_and_points_that_run_are_not() -> None:
    dead = Tuned(points=tuple(PointTime(point=p, time_ns=None, failure="no g++") for p in FUSED.space.points))
    failed = ending(context(), events((TUNE, dead), (Stop(best=None, why="nothing ran"), None)))
    assert (failed.status, failed.verdict.reason, failed.verdict.excerpt) == ("failed", "no_point_ran", "no g++")
    ran = ending(context(), events((TUNE, TUNED), (Stop(best=None, why="all slower"), None)))
    assert ran.status == "no_improvement"


def test_what_was_tuned_and_then_refused_is_a_failure_with_its_reason() -> None:
    """Its points ran, but nothing that was handed in is known to be right."""
    run = events((TUNE, TUNED), (Try(what=RECIPE, why=""), REFUSAL), (Stop(best=None, why="none accepted"), None))
    end = ending(context(), run)
    assert (end.status, end.verdict.reason) == ("failed", REFUSAL.reason) and not end.verdict.accepted


def test_a_best_that_was_never_judged_is_not_believed() -> None:
    end = ending(context(), events((Stop(best=RECIPE, why="trust me"), None)))
    assert end.status == "no_improvement" and end.timed is None and end.recipe == ()


def test_the_fused_patterns_with_their_points() -> None:
    assert [(p.id, point) for p, point in fused(context(), RECIPE)] == [("fused_0", (("threads", 256),))]
    twice = context(matched=(*context().matched, context().matched[0]))
    assert len(fused(twice, RECIPE)) == 1, "a pattern that stands in two cases is told once"


def test_on_what_a_point_rests() -> None:
    assert tuning_of(context(), IMPROVED, FUSED) == ("measured", TUNED.points)
    refused = events((TUNE, REFUSAL))
    assert tuning_of(context(), refused, FUSED) == ("untuned", ())
    assert tuning_of(context(hinted=RECIPE), refused, FUSED) == ("hinted", ())
    assert tuning_of(context(remembered=RECIPE), (), FUSED) == ("remembered", ())


def test_floor_share() -> None:
    assert floor_share(timed()) == pytest.approx(150 / 200)
    assert floor_share(timed(times_ns=())) is None
    assert floor_share(None) is None


def test_a_run_that_goes_on_says_how_far_it_has_come() -> None:
    whole, none = ending(context(), IMPROVED[:-1]).verdict.summary, ending(context(), ()).verdict.summary
    assert whole == f"{none}; so far {ending(context(), IMPROVED).verdict.summary}" and "as fast as eager" in whole


def near(ns: float) -> Interval:
    return Interval(low=ns * 0.99, mid=ns, high=ns * 1.01)


@pytest.mark.parametrize(
    ("ours", "compiled", "kept", "theirs"),
    [
        (2.0, 1.5, True, ""),  # times as fast as eager
        (2.0, 2.5, True, "reduce-overhead"),
        (0.9, 2.5, False, "reduce-overhead"),
        (0.9, 1.005, False, ""),  # within noise
    ],
)
def test_torch_compile_is_named_where_it_is_faster_than_what_is_handed_over(
    ours: float, compiled: float, kept: bool, theirs: str
) -> None:
    speeds = {"ours": ours, "eager": 1.0, "compile": compiled}
    seen = replace(
        timed(ours), times_ns=tuple((name, near(1e6 / speed)) for name, speed in speeds.items()),
        ratios=(("eager", near(ours)), ("compile", near(ours / compiled))), compile_mode="reduce-overhead",
    )  # fmt: skip
    run = events((Try(what=GIVEN, why=""), seen), (Stop(best=GIVEN if kept else None, why="that was all"), None))
    end = ending(context(), run)
    assert end.theirs == theirs and end.status == ("improved" if kept else "no_improvement")
    told = f"torch.compile (reduce-overhead) is faster: {compiled:.2f}x as fast as eager"
    assert end.verdict.summary.endswith(told) == bool(theirs)
    assert summary(context(), run, candidate_dir="")["theirs"] == (theirs or None)


def test_a_failure_stays_one_though_torch_compile_is_faster() -> None:
    times = tuple((name, near(ns)) for name, ns in (("ours", 5e5), ("eager", 1e6), ("compile", 4e5)))
    race = Failure(stage="sanitize", reason="race", summary="a race")
    run = events(
        (Try(what=GIVEN, why=""), replace(timed(2.0), times_ns=times)), (Sanitize(what=GIVEN), race),
        (Stop(best=None, why="refused"), None),
    )  # fmt: skip
    end = ending(context(), run)
    assert (end.status, end.theirs) == ("failed", "")
