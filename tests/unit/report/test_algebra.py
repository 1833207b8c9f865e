"""The report on algebra: the best with it and without, and why it was refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.facts import context, pattern, timed
from tilewright.facts.move import Event, Stop, Try
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.pattern import Choice
from tilewright.facts.run import Matched
from tilewright.facts.space import point
from tilewright.report import bench_summary, markdown, summary
from tilewright.report.tables import bench_table, table

PLAIN, LESS = ((Choice(pattern=f"fused_{i}", point=point(unroll=1)),) for i in (0, 1))
REWRITTEN = (Matched(case=0, patterns=(pattern("fused_1", title="summed"),), unmatched=()),)
WHOLE = context(pattern("fused_0", title="product"))
BRIEF = replace(
    WHOLE, rewritten=REWRITTEN, cases=(replace(WHOLE.cases[0], algebra=("sum of linear: weights summed",)),)
)


def run(with_it: Timed | Failure, *, best: tuple[Choice, ...]) -> tuple[Event, ...]:
    moves = (Try(what=PLAIN, why=""), Try(what=LESS, why=""), Stop(best=best, why=""))
    outcomes = (timed(3.5), with_it, None)
    return tuple(
        Event(seq=i, move=m, outcome=o, wall_s=1.0) for i, (m, o) in enumerate(zip(moves, outcomes, strict=True))
    )


def test_gain_with_and_without_is_told_everywhere() -> None:
    events = run(timed(25.0), best=LESS)
    found = summary(BRIEF, events, candidate_dir="")
    told = found["algebra"]
    assert isinstance(told, dict)
    assert (told["with"]["mid"], told["without"]["mid"], told["kept"]) == (25.0, 3.5, True)
    assert told["steps"] == ["sum of linear: weights summed"] and told["refused"] == ""
    assert [p["title"] for p in found["patterns"]] == ["summed"]  # type: ignore[index, attr-defined]
    line = "lgebra, used (sum of linear: weights summed): 25.0x"
    assert line in markdown(BRIEF, events) and line in str(table(BRIEF, events).caption)


def test_what_was_refused_says_why_and_the_module_as_it_is_stays() -> None:
    events = run(Failure(stage="check", reason="wrong_values", summary="too far off"), best=PLAIN)
    told = summary(BRIEF, events, candidate_dir="")["algebra"]
    assert isinstance(told, dict)
    assert (told["with"], told["kept"], told["refused"]) == (None, False, "too far off")
    assert "with it nothing" not in markdown(BRIEF, events) and "refused: too far off" in markdown(BRIEF, events)


def test_a_bench_tells_the_mean_with_and_without() -> None:
    more = summary(BRIEF, run(timed(25.0), best=LESS), candidate_dir="")
    plain = summary(WHOLE, run(timed(25.0), best=PLAIN), candidate_dir="")
    total = bench_summary([more, plain])
    assert total["geomean_eager"] == pytest.approx((25.0 * 3.5) ** 0.5)
    assert total["geomean_eager_without_algebra"] == pytest.approx(3.5)
    assert "without algebra: geometric mean 3.50x" in str(bench_table([more, plain]).caption)
    assert bench_summary([plain])["geomean_eager_without_algebra"] is None


def test_other_runs_say_nothing_of_it() -> None:
    events = (Event(seq=0, move=Try(what=PLAIN, why=""), outcome=timed(2.0), wall_s=1.0),)
    assert summary(WHOLE, events, candidate_dir="")["algebra"] is None and "lgebra" not in markdown(WHOLE, events)
