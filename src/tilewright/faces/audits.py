"""`tilewright audit`: of one file here, of a folder in a process for each file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from ..edges.gpu.machine import machine
from ..edges.problems import is_task
from ..edges.toolchain import versions
from ..facts import codec
from ..facts.problem import Target
from ..report import audit_object, audit_table, audits_summary, audits_table, shirks_table
from ..run.campaign import Campaign, problem_files, run_campaign
from . import config
from .deliver import commit, stamp
from .reading import problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What to print, and whether anything audited is void."""

    object: dict[str, Any]
    tables: tuple[RenderableType, ...]
    void: bool


def is_one_problem(where: Path) -> bool:
    """A file, or what was meant to be one, or a task folder; else a folder of many."""
    return is_task(where) or where.is_file() or (where.suffix == ".py" and not where.is_dir())


def audit_file(
    file: Path, *, target: Target, budget_s: float, seed: int, say: Callable[[str], None], env: Sequence[str] = ()
) -> Shown:
    problem = problem_of(file, target=target, env=env)
    from ..judge.audits import audit  # imports torch, which a user's mistake needn't wait for

    measured = machine(target, cache_dir=config.cache_dir())
    with tempfile.TemporaryDirectory(prefix="tilewright-audit-") as folder:
        found = audit(problem, machine=measured, seed=seed, workdir=Path(folder), say=say, budget_s=budget_s)
    tables = (shirks_table(found.figures.shirks), audit_table(found))
    return Shown(object=audit_object(found), tables=tables, void=found.verdict == "void")


def audit_folder(
    where: str, *, out: Path | None, only: tuple[int, ...] | None, target: Target, budget_s: float, seed: int,
    jobs: int, devices: tuple[str, ...], command: str, say: Callable[[str], None],
    env: Sequence[str] = (),
) -> Shown:  # fmt: skip
    """Audit every problem file; started again with the same `out`, it continues with what has no result yet."""
    files = problem_files(where, only)
    name = Path(where.removeprefix("kernelbench:")).resolve().name
    campaign = Campaign(
        files=files, out=out or Path("runs") / f"audit-{name}-{target}", target=target, budget_s=budget_s,
        settings=("--seed", str(seed), *config.env_flags(env)), jobs=jobs, devices=devices, stamp=stamp(), verb="audit",
    )  # fmt: skip
    machine(target, cache_dir=config.cache_dir())  # measured now, while nothing else runs
    tasks = run_campaign(campaign, seen=lambda task: say(_line(task)))
    found = audits_object(tasks, command=command, target=target)
    return Shown(object=found, tables=(audits_table(tasks),), void=bool(found["summary"]["void"]))


def audits_object(tasks: Sequence[dict[str, Any]], *, command: str, target: Target) -> dict[str, Any]:
    """What `audit FOLDER --json` prints."""
    measured = codec.to_plain(machine(target, cache_dir=config.cache_dir()))
    return {
        "tasks": list(tasks), "summary": audits_summary(tasks), "command": command, "commit": commit(),
        "machine": {k: v for k, v in measured.items() if k != "$"} | {"versions": dict(versions())},
    }  # fmt: skip


def _line(task: dict[str, Any]) -> str:
    if "findings" not in task:
        return f"{task.get('problem')}: failed: {task['verdict']['summary']}"
    why = ", ".join(f["reason"] for f in task["findings"] if f["severity"] != "note")
    return f"{task['problem']}: {task['verdict']}{': ' + why if why else ''}"
