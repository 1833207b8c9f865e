"""What a run with a model cost, stage by stage, and each gain against steps and money."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fakes.asked import START, asking, ran, whole
from fakes.runs import IMPROVED, context
from tilewright.edges.models.scripted import scripted_reply
from tilewright.facts.run import Limits
from tilewright.report import html, markdown
from tilewright.report.costs import costs, gains

REPLIES = [whole("ns 800", "fuse"), "Hm.", whole("bad hung"), whole("ns 500"), whole("ns 900")]


def test_costs_are_split_by_stage_and_gains_are_held_against_them(tmp_path: Path) -> None:
    on = asking(start=START, limits=Limits(calls=5))
    _, events = ran(tmp_path / "run.db", "cutegen", REPLIES, on=on)
    rows = {row.stage: row for row in costs(events)}
    assert {name: row.times for name, row in rows.items()} == {
        "judging": 5, "structure": 3, "asked once more": 1, "mend": 1, "all": 10,
        "a step, in the mean": 3,
    }  # fmt: skip
    assert (rows["a step, in the mean"].tokens, rows["a step, in the mean"].price) == ("1500 in, 166 out", "$0.8333")
    assert (rows["structure"].tokens, rows["structure"].price) == ("2700 in, 300 out", "$1.5000")
    assert (rows["judging"].tokens, rows["judging"].price, rows["all"].price) == ("", "", "$2.5000")
    start, fused, mended = gains(events)
    assert (start.steps, start.calls, start.per_step, start.per_price) == (0, 0, "", "")
    assert (fused.steps, fused.calls, fused.price, fused.per_step) == (1, 1, "$0.5000", "0.25x")
    assert (mended.steps, mended.calls, mended.per_step, mended.per_price) == (2, 4, "0.50x", "0.50x a dollar")
    page = markdown(replace(context(), strategy="cutegen"), events)
    assert "## What it cost" in page and "| mend | 1 |" in page and "| 0.50x | 0.50x a dollar |" in page
    assert "gained for the money" in html(replace(context(), strategy="cutegen"), events)


def test_what_nobody_knows_is_unknown_and_a_run_without_a_model_costs_nothing(tmp_path: Path) -> None:
    on = asking(start=START, limits=Limits(calls=1))
    _, events = ran(tmp_path / "run.db", "cutegen", [scripted_reply(whole("ns 500"))], on=on)
    assert [(row.tokens, row.price) for row in costs(events) if row.stage == "structure"] == [("unknown", "unknown")]
    assert (costs(events)[-1].tokens, costs(events)[-1].price) == ("unknown", "unknown")
    assert gains(events)[-1].per_price == ""
    assert costs(IMPROVED) == gains(IMPROVED) == ()
    assert "What it cost" not in markdown(context(), IMPROVED)
