"""Which of torch.compile's modes a verdict is against, and the times of the others, as a reader sees them."""

from __future__ import annotations

from dataclasses import replace

from fakes.facts import timed
from tilewright.facts.outcome import Interval, Timed
from tilewright.report import words
from tilewright.report.chart import chart


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
