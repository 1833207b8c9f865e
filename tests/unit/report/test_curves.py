"""Best so far against what was spent: the steps of a run, strategies side by side, and how both are drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from rich.console import Console

from fakes.prompts import ask
from fakes.runs import RECIPE, REFUSAL, context, events, timed
from tilewright.facts.dialogue import Reply, Usage
from tilewright.facts.errors import UserError
from tilewright.facts.move import Stop, Try
from tilewright.facts.run import Limits
from tilewright.report import Curve, compared, comparison_object, comparison_svg, comparison_tables, curve, html
from tilewright.report.plot import HEIGHT, WIDTH, run_plot

USAGE = Usage(input_tokens=900, output_tokens=100)
REPLY = Reply(text="", finish="stop", model="m", usage=USAGE, price_usd=0.5)


def run(*ratios: float | None, strategy: str = "cutegen", problem: str = "a", reply: Reply = REPLY) -> Curve:
    """A run that asked before each judgement; None is a refusal. Each event took 1.5 s."""
    pairs = []
    for turn, ratio in enumerate(ratios):
        pairs += [(ask(turn), reply), (Try(what=RECIPE, why="r"), timed(ratio) if ratio else REFUSAL)]
    return curve(context(problem, strategy=strategy), events(*pairs, (Stop(best=None, why=""), None)))


def test_the_best_so_far_is_what_would_be_handed_over() -> None:
    found = run(None, 1.5, 1.2, 1.003, 2.0)
    assert [step.best.mid for step in found.steps] == [1.0, 1.5, 1.5, 1.5, 2.0]
    assert [step.ratio.mid if step.ratio else None for step in found.steps] == [None, 1.5, 1.2, 1.003, 2.0]
    assert [found.best_at("calls", spend).mid for spend in (0, 1, 2, 4, 5, 9)] == [1.0, 1.0, 1.5, 1.5, 2.0, 2.0]
    assert found.best_at("tokens", 2000).mid == found.best_at("usd", 1.0).mid == found.best_at("device", 3.0).mid == 1.5
    assert (found.spent.calls, found.spent.tokens, found.spent.usd, found.spent.device_s) == (5, 5000, 2.5, 9.0)
    assert run(1.004).steps[0].best.mid == 1.0  # noise is no gain


def test_strategies_are_compared_on_common_problems_at_equal_spending() -> None:
    curves = [
        *(run(1.0, 2.0, 4.0, 4.0, strategy="evolve", problem=p) for p in ("a", "b")),
        *(run(x, strategy="oneshot", problem=p) for p in ("a", "b") for x in (1.5, None)),
        run(9.0, strategy="evolve", problem="c"),
    ]
    found = compared(curves, axis="calls")
    assert (found.grid, found.problems, found.left_out) == ((1.0, 2.0, 4.0), ("a", "b"), ("c",))
    evolved, shot = found.strategies
    assert [round(r.mid, 3) for r in evolved.ratios] == [1.0, 2.0, 4.0] and evolved.runs == 2
    assert [round(r.mid, 3) for r in shot.ratios] == [round(1.5**0.5, 3)] * 3 and shot.runs == 4
    assert shot.ratios[0].low == pytest.approx(1.0, abs=0.02) and shot.ratios[0].high == pytest.approx(1.5, rel=0.02)
    assert 3.9 < evolved.ratios[2].low < 4.0 < evolved.ratios[2].high < 4.1  # what is left is each run's own interval
    assert found == compared(curves, axis="calls")  # drawn with a seed
    assert evolved.spent["calls"] == 4 and shot.spent["usd"] == 0.5
    with pytest.raises(UserError, match="nothing can be compared"):
        compared([run(2.0, problem="a"), run(2.0, strategy="x", problem="b")], axis="calls")


def test_what_nobody_knows_is_no_axis_and_other_budgets_are_told() -> None:
    unknown = run(2.0, reply=replace(REPLY, usage=None, price_usd=None))
    with pytest.raises(UserError, match="--by usd"):
        compared([unknown], axis="usd")
    row = compared([unknown], axis="calls").strategies[0]
    assert row.spent["tokens"] is None and row.spent["calls"] == 1
    small = curve(context("a", strategy="small", limits=Limits(calls=4), without=("islands",)), ())
    assert small.label == "small -islands"
    assert compared([small, run(2.0)], axis="calls").notes == (
        "budgets differ: small -islands 300 s 4 calls; cutegen 300 s",
        "not at their end yet: 1 runs of small -islands",
    )


def test_a_comparison_is_an_object_a_table_and_a_drawing() -> None:
    found = compared([run(1.5, 3.0, strategy="evolve"), run(2.0), curve(context("a"), ())], axis="calls")
    told = comparison_object(found)
    assert [s["strategy"] for s in told["strategies"]] == ["evolve", "cutegen", "catalog"]
    assert [r["spend"] for r in told["strategies"][0]["ratio"]] == [1.0, 2.0]
    console = Console(width=200, record=True, file=None)
    with console.capture() as said:
        console.print(*comparison_tables(found))
    assert re.search(r"evolve\s+1\.50x\s+3\.00x\s+\[1\.\d+, 1\.5\d\]\s+\[2\.9\d, 3\.0\d\]", said.get()), said.get()
    assert re.search(r"evolve\s+1\s+2\s+2.00 k\s+1\.00\s+", said.get()), said.get()
    drawn = ElementTree.fromstring(comparison_svg(found))
    paths = [p.get("d", "") for p in drawn.iter("{http://www.w3.org/2000/svg}path") if "line" in p.get("class", "")]
    assert len(paths) == 3 and [p.count("V") for p in paths] == [2, 2, 1]
    places = [float(v) for p in paths for v in re.findall(r"[-\d.]+", p)]
    assert min(places) >= 0 and max(places) <= WIDTH


def test_a_run_that_asked_has_its_search_in_the_report() -> None:
    plot = run_plot(run(None, 1.5, 1.2, 3.0))
    assert plot is not None and len(plot.lines[0].dots) == 3 and plot.across[-1].text == "4"
    ups = [float(y) for y in re.findall(r"V([\d.]+)", plot.lines[0].path)]
    assert ups == sorted(ups, reverse=True) and 0 < ups[-1] < ups[0] < HEIGHT  # it only rises
    asked = events((ask(0), REPLY), (Try(what=RECIPE, why="r"), timed(1.5)), (ask(1), REPLY),
                   (Try(what=RECIPE, why="s"), timed(1.2)), (Stop(best=RECIPE, why=""), None))  # fmt: skip
    assert "Best so far" in html(context(), asked) and 'class="line s0"' in html(context(), asked)
    assert run_plot(curve(context(), ())) is None and "Best so far" not in html(context(), asked[-1:])
