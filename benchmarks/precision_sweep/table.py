"""What the sweep found: how many verdicts are wrong, and whose."""

from __future__ import annotations

from collections.abc import Mapping

from .candidates import DISHONEST, HONEST
from .run import Tally


def summary(tallies: Mapping[str, Tally]) -> str:
    """One line for each candidate: how many of its verdicts are wrong, over all cells."""
    total = sum(len(t.seeds) for t in tallies.values())
    lines = []
    for names, what in ((DISHONEST, "accepted"), (HONEST, "refused")):
        for name in names:
            wrong = sum(t.wrong().get(name, 0) for t in tallies.values())
            lines.append(f"{name}: {what} {wrong} times of {total}")
    return "\n".join(lines)


def wrong(tallies: Mapping[str, Tally]) -> int:
    return sum(sum(t.wrong().values()) for t in tallies.values())
