"""Which of torch.compile's modes a verdict is against, and the times of the others, as a reader sees them."""

from __future__ import annotations

from dataclasses import replace

from fakes.facts import timed
from fakes.runs import RECIPE, context, events
from tilewright.facts.move import Stop, Try
from tilewright.facts.outcome import Interval, Timed
from tilewright.report import words
from tilewright.report.chart import chart
from tilewright.report.story import story


def near(mid: float) -> Interval:
    return Interval(low=mid, mid=mid, high=mid)


def judged() -> Timed:
    times = {"ours": 100.0, "eager": 400.0, "compile": 150.0, "compile:default": 300.0, "compile:default_warm": 300.0}
    return replace(
        timed(4.0), times_ns=tuple((n, near(ns)) for n, ns in times.items()),
        ratios=tuple((n, near(ns / 100)) for n, ns in times.items() if n != "ours"), compile_mode="reduce-overhead",
    )  # fmt: skip


def test_the_mode_stands_in_every_name_of_the_fastest_and_the_others_follow_it() -> None:
    names = words.players(judged())
    assert names == ("eager", "compile", "compile:default", "ours", "eager_warm", "compile_warm", "ours_warm")
    assert [words.named(n, judged()) for n in names][1:3] == [
        "torch.compile (reduce-overhead)", "torch.compile (default)"
    ]  # fmt: skip
    assert words.named("compile_warm", judged()) == "torch.compile (reduce-overhead), warm"
    later = replace(judged(), compile_mode="max-autotune", compile_remembered="2026-11-27")
    assert words.named("compile", later) == "torch.compile (max-autotune, timed 2026-11-27)"


def test_the_chart_draws_the_fastest_mode_as_a_baseline() -> None:
    drawn = chart(judged())
    assert drawn is not None
    assert [(bar.name, bar.ours) for bar in drawn.bars] == [
        ("eager", False), ("torch.compile (reduce-overhead)", False), ("ours", True)
    ]  # fmt: skip


def test_a_page_tells_the_mode_and_warm_ratios_beside_cold_ones_in_its_headline() -> None:
    warm = replace(judged(), ratios=(*judged().ratios, ("compile_warm", near(1.25)), ("eager_warm", near(3.5))))
    on, made = context(), events((Try(what=RECIPE, why="all"), warm), (Stop(best=RECIPE, why="faster"), None))
    tiles = {tile.name: (tile.value, tile.note) for tile in story(on, made).tiles}
    assert tiles["against eager"] == ("4.00×", "99% interval 4.00 – 4.00; 3.50× with warm caches")
    assert tiles["against torch.compile (reduce-overhead)"][0] == "1.50×"
    assert tiles["against torch.compile (reduce-overhead)"][1].endswith("1.25× with warm caches")
    rows = [row.name for row in story(on, made).times]
    assert rows[:3] == ["eager", "torch.compile (reduce-overhead)", "torch.compile (default)"]
