"""`tilewright discover`: where a module's time goes, and what is there to realise it; of one file, or of a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..edges.gpu.machine import machine
from ..report import (
    calls_table,
    discoveries_summary,
    discoveries_table,
    discovery_object,
    discovery_svg,
    left_table,
    parts_table,
    words,
)
from . import config
from .folders import FolderRequest, Many, Task, campaign_of, is_one_problem, run_all
from .printing import Shown
from .reading import problem_of


def discovered(where: str, wish: FolderRequest, many: Many, *, svg: Path | None, say: Callable[[str], None]) -> Shown:
    """Of one file (drawn into `svg`, if that is named), or of every file of a folder."""
    if is_one_problem(Path(where)):
        return _of_file(Path(where), wish, svg=svg, say=say)
    campaign = campaign_of(where, wish, many, verb="discover")
    found = run_all(campaign, summary=discoveries_summary, line=_line, say=say, cluster=many.cluster)
    return Shown(object=found, drawn=(left_table(found["tasks"]), discoveries_table(found["tasks"])))


def _of_file(file: Path, wish: FolderRequest, *, svg: Path | None, say: Callable[[str], None]) -> Shown:
    problem = problem_of(file, target=wish.target, mode="inference", env=wish.env)
    from ..judge.discover import discover  # as in audits

    measured = machine(wish.target, cache_dir=config.cache_dir())
    with tempfile.TemporaryDirectory(prefix="tilewright-discover-") as folder:
        found = discover(
            problem, machine=measured, seed=wish.seed, workdir=Path(folder), say=say, budget_s=wish.budget_s
        )
    if svg is not None:
        svg.write_text(discovery_svg(found), encoding="utf-8")
    return Shown(object=discovery_object(found), drawn=(calls_table(found), parts_table(found)))


def _line(task: Task) -> str:
    if "parts" not in task:
        return f"{task.get('problem')}: failed: {task['verdict']['summary']}"
    return f"{task['problem']}: {words.percent(task['covered'])} in patterns, can win {words.percent(task['gain'])}"
