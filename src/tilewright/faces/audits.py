"""`tilewright audit`: of one file here, of a folder in a process for each file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..edges.gpu.machine import machine
from ..report import audit_object, audit_table, audits_summary, audits_table, degenerate_table
from . import config
from .folders import FolderRequest, Many, Task, campaign_of, is_one_problem, run_all
from .printing import Shown
from .reading import problem_of


def audited(where: str, wish: FolderRequest, many: Many, *, say: Callable[[str], None]) -> Shown:
    """Audit one problem, or every problem file of a folder; refused where anything audited is void."""
    if is_one_problem(Path(where)):
        return _of_file(Path(where), wish, say=say)
    found = run_all(
        campaign_of(where, wish, many, verb="audit"), summary=audits_summary, line=_line, say=say, cluster=many.cluster
    )
    return Shown(object=found, drawn=(audits_table(found["tasks"]),), refused=bool(found["summary"]["void"]))


def _of_file(file: Path, wish: FolderRequest, *, say: Callable[[str], None]) -> Shown:
    problem = problem_of(file, target=wish.target, env=wish.env)
    from ..judge.audits import audit  # imports torch, which a user's mistake needn't wait for

    measured = machine(wish.target, cache_dir=config.cache_dir())
    with tempfile.TemporaryDirectory(prefix="tilewright-audit-") as folder:
        found = audit(problem, machine=measured, seed=wish.seed, workdir=Path(folder), say=say, budget_s=wish.budget_s)
    tables = (degenerate_table(found.figures.degenerate_solutions), audit_table(found))
    return Shown(object=audit_object(found), drawn=tables, refused=found.verdict == "void")


def _line(task: Task) -> str:
    if "findings" not in task:
        return f"{task.get('problem')}: failed: {task['verdict']['summary']}"
    why = ", ".join(f["reason"] for f in task["findings"] if f["severity"] != "note")
    return f"{task['problem']}: {task['verdict']}{': ' + why if why else ''}"
