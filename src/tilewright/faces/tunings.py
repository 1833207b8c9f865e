"""What `tilewright tune --ahead` shows: the points of each pattern, compiled for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from ..facts.demand import Demand
from ..facts.device import Device
from ..facts.devices import DEVICES
from ..facts.errors import UserError
from ..facts.problem import Problem
from ..facts.space import Point
from ..report import words
from ..run.tune_ahead import Prepared, tune_ahead
from . import config
from .printing import Shown


def prepared(problem: Problem, name: str, *, say: Callable[[str], None]) -> Shown:
    """The points and their demands; UserError where no GPU of this name is known."""
    device = DEVICES.get(name.lower())
    if device is None:
        raise UserError(f"--ahead {name}: no GPU that is known here; {', '.join(DEVICES)} are")
    found, folder = tune_ahead(problem, device, cache=config.cache_dir(), say=say)
    return Shown(
        object=ahead_object(found, folder=folder, device=device),
        drawn=(ahead_table(found, device), f"kernels  {folder}"),
    )


def ahead_object(prepared: Sequence[Prepared], *, folder: Path, device: Device) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "device": device.name, "arch": device.architecture, "folder": str(folder),
        "patterns": [
            {"id": p.pattern.id, "title": p.pattern.title, "kind": p.pattern.kind,
             "shape_class": p.pattern.shape_class, "points": [_point(p, at, device) for at in _in_order(p)]}
            for p in prepared
        ],
    }  # fmt: skip


def _point(prepared: Prepared, at: Point, device: Device) -> dict[str, Any]:
    demand = prepared.demands.get(at, "not known")
    return {
        "point": dict(at), "to_measure": at in prepared.order,
        "predicted_ns": prepared.predicted_ns(at, device),
        "demand": asdict(demand) if isinstance(demand, Demand) else None,
        "failure": demand if isinstance(demand, str) else "",
    }  # fmt: skip


def ahead_table(prepared: Sequence[Prepared], device: Device) -> Table:
    """One line a point, those that would be measured first, in their order."""
    shown = Table("pattern", "point", "predicted", "registers", "shared", "CTAs", box=None, header_style="bold")
    for one in prepared:
        for place, at in enumerate(_in_order(one)):
            demand, time_ns = one.demands.get(at, "not known"), one.predicted_ns(at, device)
            told = words.duration(time_ns) if time_ns and at in one.order else "" if at in one.order else "left out"
            taken = [str(demand.registers), words.capacity(demand.shared_bytes), str(demand.ctas)] \
                if isinstance(demand, Demand) else [demand[:60], "", ""]  # fmt: skip
            shown.add_row("" if place else one.pattern.title, words.settings(at), told, *taken)
    return shown


def _in_order(prepared: Prepared) -> tuple[Point, ...]:
    return (*prepared.order, *(p for p in prepared.pattern.space.points if p not in prepared.order))
