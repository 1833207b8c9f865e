"""Strategies side by side: an object for programs, a table for the terminal, a drawing."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from . import plot, words
from .curves import AXES, Axis, Comparison
from .page import environment
from .plot import comparison_plot

_UNITS = {"calls": "calls", "tokens": "tokens", "usd": "usd", "device": "s", "seconds": "s", "tries": "tries"}


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


def comparison_table(found: Comparison) -> Table:
    """A row for each strategy: how many times as fast as eager after each spend, and what its runs took."""
    drawn = Table(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    count = len(found.problems)
    drawn.title = (
        f"[not italic]times as fast as eager, best so far: geometric mean over {count} problem{'s' * (count > 1)}, "
        "99% interval[/]"
    )
    drawn.add_column("strategy")
    drawn.add_column("runs", justify="right")
    for spend in found.grid:
        drawn.add_column(f"{_amount(spend, found.axis)} {_UNITS[found.axis]}", justify="right")
    drawn.add_column("a run took", justify="left")
    for row in found.strategies:
        drawn.add_row(
            row.label,
            str(row.runs),
            *(words.times(ratio).replace("[", "\\[") for ratio in row.ratios),
            _took(row.spent),
        )
    told = [*found.notes]
    told += [f"left out, since not all strategies have them: {', '.join(found.left_out)}"] if found.left_out else []
    drawn.caption = "[not italic not dim]" + "\n".join(told) + "[/]" if told else None
    return drawn


def comparison_svg(found: Comparison) -> str:
    """Best so far against what was spent, a line for each strategy; a document of its own."""
    template = environment().get_template("compare.svg.jinja")
    return template.render(p=comparison_plot(found), plot=plot)


def _took(spent: Any) -> str:
    told = [f"{_amount(spent[axis], axis)} {_UNITS[axis]}" for axis in ("calls", "tokens") if spent[axis]]
    told += [f"${spent['usd']:.2f}"] if spent["usd"] else []
    told += [f"{_amount(spent['device'], 'device')} s of the device"]
    unknown = [axis for axis in AXES if spent[axis] is None]
    return ", ".join(told) + (f" ({', '.join(unknown)} unknown)" if unknown else "")


def _amount(value: float, axis: Axis) -> str:
    if axis in ("calls", "tries") and value == int(value):
        return f"{value:.0f}"
    return words.amount(int(value), "").strip() if axis == "tokens" and value >= 1000 else words.digits(value)
