"""`tilewright discover`: where a module's time goes, and what is there to realise it; of one file, or of a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from ..edges.gpu.machine import machine
from ..edges.toolchain import versions
from ..facts import codec
from ..facts.problem import Target
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
from ..run.campaign import Campaign, problem_files, run_campaign
from . import config
from .audits import is_one_problem
from .deliver import commit, stamp
from .reading import problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    object: dict[str, Any]
    tables: tuple[RenderableType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is the same for one file and for many."""

    target: Target
    budget_s: float
    seed: int
    env: tuple[str, ...] = ()


def discovered(
    where: str, wish: Wish, *, svg: Path | None, out: Path | None, only: tuple[int, ...] | None, jobs: int,
    devices: tuple[str, ...], command: str, say: Callable[[str], None],
) -> Shown:  # fmt: skip
    """Of one file (drawn into `svg`, if that is named), or of every file of a folder, whose results `out` keeps."""
    if is_one_problem(Path(where)):
        return _of_file(Path(where), wish, svg=svg, say=say)
    name = Path(where.removeprefix("kernelbench:")).resolve().name
    campaign = Campaign(
        files=problem_files(where, only), out=out or Path("runs") / f"discover-{name}-{wish.target}",
        target=wish.target, budget_s=wish.budget_s, settings=("--seed", str(wish.seed), *config.env_flags(wish.env)),
        jobs=jobs, devices=devices, stamp=stamp(), verb="discover",
    )  # fmt: skip
    return _of_folder(campaign, command=command, say=say)


def _of_file(file: Path, wish: Wish, *, svg: Path | None, say: Callable[[str], None]) -> Shown:
    problem = problem_of(file, target=wish.target, mode="inference", env=wish.env)
    from ..judge.discover import discover  # as in audits

    measured = machine(wish.target, cache_dir=config.cache_dir())
    with tempfile.TemporaryDirectory(prefix="tilewright-discover-") as folder:
        found = discover(
            problem, machine=measured, seed=wish.seed, workdir=Path(folder), say=say, budget_s=wish.budget_s
        )
    if svg is not None:
        svg.write_text(discovery_svg(found), encoding="utf-8")
    return Shown(object=discovery_object(found), tables=(calls_table(found), parts_table(found)))


def _of_folder(campaign: Campaign, *, command: str, say: Callable[[str], None]) -> Shown:
    """Each file in a process of its own; the same `out` again continues with what has no result yet."""
    measured = codec.to_plain(machine(campaign.target, cache_dir=config.cache_dir()))  # now, while nothing else runs
    tasks = run_campaign(campaign, seen=lambda task: say(_line(task)))
    found = {
        "tasks": list(tasks), "summary": discoveries_summary(tasks), "command": command, "commit": commit(),
        "machine": {k: v for k, v in measured.items() if k != "$"} | {"versions": dict(versions())},
    }  # fmt: skip
    return Shown(object=found, tables=(left_table(tasks), discoveries_table(tasks)))


def _line(task: dict[str, Any]) -> str:
    if "parts" not in task:
        return f"{task.get('problem')}: failed: {task['verdict']['summary']}"
    return f"{task['problem']}: {words.percent(task['covered'])} in patterns, can win {words.percent(task['gain'])}"
