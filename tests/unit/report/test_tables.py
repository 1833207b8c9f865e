"""The terminal's tables: what a reader looks for stands there, and text from outside is no markup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console, RenderableType

from fakes.runs import IMPROVED, NOTHING, REFUSED, SLOWER, context, near, timed
from tilewright.facts.outcome import Phase
from tilewright.report import bench_table, summary, table


def shown(what: RenderableType) -> str:
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def row(text: str, label: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(label)).split()


def test_an_improved_run() -> None:
    text = shown(table(context(), IMPROVED))
    assert "gated_shift on NVIDIA H200: improved" in text
    assert "1.30x as fast as eager [1.29, 1.31]" in text
    assert row(text, "eager")[1:3] == ["260", "µs"] and "[1.29, 1.31]" in text
    assert row(text, "ours")[1:3] == ["200", "µs"]
    assert " ".join(row(text, "machine's floor")).endswith("150 µs at 75% of its speed")
    norm = " ".join(row(text, "error vs float64, norm"))
    assert norm.endswith("3.0e-07 allowed 4.0e-07 75% of that")
    assert "fused_0: scale -> shift -> silu (4 nodes; threads=256)" in text
    assert "left to torch: 1 node" in text


def test_a_step_is_shown_by_its_halves() -> None:
    half = Phase(
        name="backward", times_ns=(("eager", near(180e3)), ("ours", near(90e3))), ratios=(("eager", near(2.0)),)
    )
    seen = timed(phases=(half,), peak_bytes=(("ours", 3_000_000),))
    run = (*IMPROVED[:1], replace(IMPROVED[1], outcome=seen), *IMPROVED[-1:])
    known = context()
    text = shown(table(replace(known, problem=replace(known.problem, mode="training")), run))
    assert "in training on" in text
    assert row(text, "backward, eager")[2:4] == ["180", "µs"] and "2.00x" in " ".join(row(text, "backward, eager"))
    assert row(text, "backward, ours")[2:4] == ["90.0", "µs"]
    assert row(text, "memory at its peak, ours")[-2:] == ["3.00", "MB"]


def test_it_fits_a_terminal_of_80_columns() -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(table(context(), IMPROVED))
    assert "1.30x [1.29, 1.31]" in captured.get() and "…" not in captured.get()


def test_runs_without_a_result() -> None:
    slower = shown(table(context(), SLOWER))
    assert "no improvement" in slower and "201 µs" in slower and " ours " not in slower
    assert "output 0 is off by 3.0" in shown(table(context(), REFUSED))
    assert "no pattern matched" in shown(table(context(), NOTHING))


def test_markup_in_names_is_text() -> None:
    assert "[red]x[/] on NVIDIA" in shown(table(context("[red]x[/]"), IMPROVED))
    task: dict[str, Any] = dict(summary(context("[bold]y"), REFUSED, candidate_dir=""))
    task["verdict"] = {"reason": "[/]", "summary": "[link=x]"}
    assert "[bold]y" in shown(bench_table([task])) and "[link=x]" in shown(bench_table([task]))


def test_a_bench() -> None:
    hung = {
        "problem": "h",
        "status": "failed",
        "whose": "project",
        "verdict": {"reason": "hung", "summary": "no result"},
        "ratio": {},
    }
    runs = {"good": IMPROVED, "slow": SLOWER, "bad": REFUSED}
    text = shown(bench_table([summary(context(n), run, candidate_dir="c") for n, run in runs.items()] + [hung]))
    assert row(text, "good")[-6:] == ["1.30x", "1.29", "–", "1.31", "1.10x", "75%"]
    assert row(text, "slow")[-2:] == ["1.00x", "1.00x"] and "not faster" in text
    assert row(text, "geometric mean")[2:] == ["1.07x", "1.02x", "75%"]
    assert "2 of 4 accepted by the judge, 1 kept as they are, 2 failed" in text
    assert "failed (project): h: hung: no result" in text and "failed (candidate): bad: wrong_values" in text
    assert "hung (project)" in row(text, "h ")[1] + " " + row(text, "h ")[2]
    assert "fast_p: 50% above 0x, 25% above 1x, 0% above 1.5x, 0% above 2x" in text
    assert "0 of 0" in shown(bench_table([]))
