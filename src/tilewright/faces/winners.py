"""What `tilewright tune` and `tilewright winners` show of winners and their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from ..facts import codec
from ..facts.outcome import PointTime, Tuned
from ..facts.winner import Winner
from ..report import words
from ..run.tune import TunedProblem
from ..search.tune import exchange, memory

Shown = dict[str, Any]


def tuned_object(tuned: TunedProblem) -> Shown:
    """What `tune --json` prints."""
    context = tuned.context
    machine = codec.to_plain(context.machine)
    return {
        "problem": context.problem.name, "target": context.problem.target,
        "patterns": [
            {"id": p.id, "title": p.title, "kind": p.kind, "shape_class": p.shape_class, "points": len(p.space.points)}
            for p in context.matched[0].patterns
        ],
        "winners": [winner_object(w) for w in tuned.winners],
        "unmatched": list(context.matched[0].unmatched),
        "machine": {k: v for k, v in machine.items() if k != "$"} | {"versions": dict(context.versions)},
        "seconds": sum(e.wall_s for e in tuned.events if isinstance(e.outcome, Tuned)),
    }  # fmt: skip


def winner_object(winner: Winner, *, kept: str = "here") -> Shown:
    return {
        "target": winner.target, "device": winner.device, "toolchain": asdict(winner.toolchain),
        "shape_class": winner.shape_class, "title": winner.title, "point": dict(winner.point),
        "time_ns": asdict(winner.time_ns), "floor_share": winner.floor_share, "found_at": winner.found_at,
        "tried": [_tried(t) for t in winner.tried], "kept": kept,
    }  # fmt: skip


def _tried(measured: PointTime) -> Shown:
    time = asdict(measured.time_ns) if measured.time_ns is not None else None
    return {"point": dict(measured.point), "time_ns": time, "failure": measured.failure}


def tuned_table(tuned: TunedProblem) -> Table:
    """One line for each pattern of the first case; one without a choice has nothing to show."""
    shown = _table()
    won = {w.shape_class: w for w in tuned.winners}
    for pattern in tuned.context.matched[0].patterns:
        winner = won.get(pattern.shape_class)
        if winner is not None:
            shown.add_row(pattern.title, *_cells(winner))
        else:
            why = "no choice" if len(pattern.space.points) < 2 else "not measured: out of time, or no point ran"
            shown.add_row(pattern.title, why, "", "", "")
    return shown


def listed(path: Path, *, shipped: Path = memory.SHIPPED) -> list[Shown]:
    """What `winners list --json` prints: what is kept at `path`, if anything is, then what came with the package."""
    mine = exchange.winners(path) if path.exists() else ()
    theirs = exchange.winners(shipped, immutable=True)
    kept = (*((w, "here") for w in exchange.counted(mine)), *((w, "shipped") for w in exchange.counted(theirs)))
    return [winner_object(winner, kept=where) for winner, where in kept]


def winners_table(found: Sequence[Shown]) -> Table:
    shown = _table("device", "toolchain", "found", "kept")
    for w in found:
        chain = " ".join(filter(None, (w["toolchain"][k] for k in ("driver", "torch", "dsl", "tilewright"))))
        shown.add_row(
            w["title"], words.settings(tuple(sorted(w["point"].items()))), words.duration(w["time_ns"]["mid"]),
            words.percent(w["floor_share"]), str(len(w["tried"])), w["device"], chain, w["found_at"], w["kept"],
        )  # fmt: skip
    return shown


def merged(mine: Path, other: Path) -> dict[str, int]:
    return asdict(exchange.merge(mine, other))


def exported(mine: Path, to: Path, *, add: bool) -> dict[str, int]:
    found = exchange.winners(mine)
    exchange.export(found, to, add=add)
    there = {"there now": len(exchange.counted(exchange.winners(to)))} if add else {}
    return {"exported": len(exchange.counted(found))} | there


def _table(*more: str) -> Table:
    return Table(
        "pattern", "winner", "time of a call", "of floor", "points tried", *more, box=None, header_style="bold"
    )


def _cells(winner: Winner) -> tuple[str, ...]:
    time = f"{words.duration(winner.time_ns.mid)} [{words.span(winner.time_ns)}]"
    return words.settings(winner.point), time, words.percent(winner.floor_share), str(len(winner.tried))
