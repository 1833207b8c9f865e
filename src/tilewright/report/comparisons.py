"""Strategies side by side: an object for programs, a table for the terminal, a drawing."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from . import plot, words
from .curves import AXES, Axis, Comparison
from .page import environment
from .plot import comparison_plot

_UNITS = {
    "calls": "calls", "tokens": "tokens", "usd": "US dollars", "device": "seconds of the device", "seconds": "seconds",
    "tries": "tries",
}  # fmt: skip


def comparison_object(found: Comparison) -> dict[str, Any]:
    """The object of `compare --json`."""
    return {
        "by": found.axis,
        "problems": list(found.problems),
        "left_out": list(found.left_out),
        "notes": list(found.notes),
        "strategies": [
            {
                "strategy": row.label, "runs": row.runs, "spent": dict(row.spent),
                "ratio": [
                    {"spend": spend, "low": r.low, "mid": r.mid, "high": r.high}
                    for spend, r in zip(found.grid, row.ratios, strict=True)
                ],
            }
            for row in found.strategies
        ],
    }  # fmt: skip


def comparison_tables(found: Comparison) -> tuple[Table, Table]:
    """A row for each strategy: how many times as fast as eager after each spend; and what its runs took."""
    ratios = Table(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    count = len(found.problems)
    ratios.title = (
        f"[not italic]times as fast as eager, best so far: geometric mean over {count} problem{'s' * (count > 1)}, "
        f"99% interval; after so many {_UNITS[found.axis]}[/]"
    )
    costs = Table(box=box.SIMPLE_HEAD, title="[not italic]a run took[/]", title_justify="left")
    for drawn, heads in ((ratios, [_amount(spend, found.axis) for spend in found.grid]), (costs, ["runs", *AXES])):
        drawn.add_column("strategy", no_wrap=True)
        for head in heads:
            drawn.add_column(head, justify="right")
    for row in found.strategies:
        ratios.add_row(row.label, *(escape(words.times(ratio).replace(" [", "\n[")) for ratio in row.ratios))
        took = (row.spent[axis] for axis in AXES)
        told = ["unknown" if v is None else _amount(v, axis) for axis, v in zip(AXES, took, strict=True)]
        costs.add_row(row.label, str(row.runs), *told)
    notes = [*found.notes]
    notes += [f"left out, since not all strategies have them: {', '.join(found.left_out)}"] if found.left_out else []
    ratios.caption = f"[not italic not dim]{escape(chr(10).join(notes))}[/]" if notes else None
    return ratios, costs


def comparison_svg(found: Comparison) -> str:
    """Best so far against what was spent, a line for each strategy; a document of its own."""
    template = environment().get_template("compare.svg.jinja")
    return template.render(p=comparison_plot(found), plot=plot)


def _amount(value: float, axis: Axis) -> str:
    if axis in ("calls", "tries") and value == int(value):
        return f"{value:.0f}"
    return words.amount(int(value), "").strip() if axis == "tokens" and value >= 1000 else words.digits(value)
