"""A profile, drawn for the terminal: where a call's time goes, what limits it, the evidence, what is likely to pay."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table

from ..facts.outcome import Inspected
from . import words

_MOST_NAMES = 12
_MOST_KERNELS = 4


def profile_table(found: Inspected, title: str) -> Table:
    """The names that took longest."""
    drawn = Table(box=box.SIMPLE_HEAD, title_justify="left", title=f"[not italic]{escape(title)}[/]")
    for heading in ("", "of", "times", "time", "share"):
        drawn.add_column(heading, justify="left" if heading in ("", "of") else "right")
    for n in found.longest[:_MOST_NAMES]:
        share = words.percent(n.ns / found.ns) if found.ns else ""
        drawn.add_row(escape(n.name[:100]), n.origin, str(n.times), words.duration(n.ns), share)
    return drawn


def profile_lines(found: Inspected) -> tuple[str, ...]:
    """What the evidence says, a line each."""
    return found.diagnosis.lines(_MOST_KERNELS) if found.diagnosis else ()
