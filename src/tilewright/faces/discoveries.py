"""`tilewright discover`: where a module's time goes, and what is there to realise it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from ..edges.gpu.machine import machine
from ..facts.problem import Target
from ..report import calls_table, discovery_object, discovery_svg, parts_table
from ..stages.problems import read_problem
from . import config


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What to print, and the graph, drawn."""

    object: dict[str, Any]
    tables: tuple[RenderableType, ...]
    svg: str


def discovery_of(file: Path, *, target: Target, seed: int, say: Callable[[str], None]) -> Shown:
    problem = read_problem(file, target=target, mode="inference")
    from ..flow.discover import discover  # as in audits

    measured = machine(target, cache_dir=config.cache_dir())
    with tempfile.TemporaryDirectory(prefix="tilewright-discover-") as folder:
        found = discover(problem, machine=measured, seed=seed, workdir=Path(folder), say=say)
    return Shown(
        object=discovery_object(found), tables=(calls_table(found), parts_table(found)), svg=discovery_svg(found)
    )
