"""The table of realisations for people and programs: what solved what, how well, and whether that is trusted here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ..facts.candidate import Candidate
from ..facts.realised import Realised
from . import words


def realised_object(entry: Realised, *, doubt: str) -> dict[str, Any]:
    """What `patterns list --json` prints of an entry. `doubt`: why it is to be judged again; "": it is trusted."""
    return {
        "key": entry.key, "title": entry.title, "target": entry.problem.target, "by": entry.by, "model": entry.model,
        "device": entry.device, "toolchain": asdict(entry.toolchain), "ratio": asdict(entry.ratio),
        "time_ns": asdict(entry.time_ns), "floor_share": entry.floor_share, "error_share": entry.error,
        "run": entry.run, "journal": entry.journal, "found_at": entry.found_at, "trusted": not doubt, "doubt": doubt,
    }  # fmt: skip


def realisations_table(shown: Sequence[dict[str, Any]]) -> Table:
    """Of objects as `realised_object` gives them."""
    drawn = Table(
        "realised", "by a", "times as fast", "of floor", "of error allowed", "device", "found", "trusted", "key",
        box=None, header_style="bold",
    )  # fmt: skip
    for e in shown:
        ratio = e["ratio"]
        drawn.add_row(
            e["title"], e["by"], f"{ratio['mid']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]",
            words.percent(e["floor_share"]), words.percent(e["error_share"]), e["device"], e["found_at"],
            "yes" if e["trusted"] else f"no: {e['doubt']}", e["key"],
        )  # fmt: skip
    return drawn


def realised_text(entry: Realised, *, doubt: str) -> str:
    """The whole of an entry: its evidence, its problem, and what solves it."""
    told = realised_object(entry, doubt=doubt)
    chain = " ".join(filter(None, told["toolchain"].values()))
    lines = [
        f"# {entry.title}", "",
        f"{entry.ratio.mid:.2f}x as fast as torch [{entry.ratio.low:.2f}, {entry.ratio.high:.2f}], "
        f"{words.duration(entry.time_ns.mid)} a call, {words.percent(entry.floor_share)} of the floor, "
        f"{words.percent(entry.error)} of the error allowed, on {entry.device} ({chain}), {entry.found_at}, "
        f"run {entry.run}{f', {entry.journal}' if entry.journal else ''}.",
        f"Trusted: {'yes' if not doubt else f'no: {doubt}'}.", "", "## The problem", "",
        "```python", entry.problem.source.rstrip(), "```", "", "## What solves it", "",
    ]  # fmt: skip
    if isinstance(entry.what, Candidate):
        for file in entry.what.files:
            lines += [f"{file.path}:", "```", file.text.rstrip(), "```"]
    else:
        lines += [f"- {c.pattern}: {words.settings(c.point) if c.written is None else 'written'}" for c in entry.what]
    return "\n".join(lines)
