"""A profile, drawn for the terminal: where a call's time goes, what limits it, the evidence, what is likely to pay."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ..facts.outcome import Inspected
from . import words
from .ruled import ruled

_MOST_NAMES = 12
_MOST_KERNELS = 4


def profile_table(found: Inspected, title: str) -> Table:
    """The names that took longest."""
    drawn = ruled("", "of", "times", "time", "share", numbers=("times", "time", "share"), title=escape(title))
    for n in found.longest[:_MOST_NAMES]:
        share = words.percent(n.ns / found.ns) if found.ns else ""
        drawn.add_row(escape(n.name[:100]), n.origin, str(n.times), words.duration(n.ns), share)
    return drawn


def profile_lines(found: Inspected) -> tuple[str, ...]:
    """What the evidence says, a line each."""
    return found.diagnosis.lines(_MOST_KERNELS) if found.diagnosis else ()
