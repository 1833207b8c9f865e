"""The sweep as a table: of each cell, how many verdicts are wrong, and whose."""

from __future__ import annotations

from collections.abc import Mapping

from .candidates import DISHONEST, HONEST
from .run import Tally


def markdown(tallies: Mapping[str, Tally]) -> str:
    """Counts of dishonest candidates that were accepted, and of honest ones refused, of as many seeds."""
    names = [*DISHONEST, *HONEST]
    titles = [f"{n} accepted" for n in DISHONEST] + [f"{n} refused" for n in HONEST]
    lines = [
        f"| cell | seeds | {' | '.join(titles)} | s |",
        f"|---|{'---|' * (len(names) + 2)}",
    ]
    for name, tally in sorted(tallies.items(), key=lambda item: (int(item[0].rsplit(", ", 1)[1]), item[0])):
        wrong = tally.wrong()
        counts = " | ".join(str(wrong.get(n, 0)) for n in names)
        lines.append(f"| {name} | {len(tally.seeds)} | {counts} | {tally.seconds:.0f} |")
    return "\n".join(lines) + "\n"


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
