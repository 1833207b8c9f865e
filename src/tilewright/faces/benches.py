"""`tilewright bench`: every problem of a folder, each optimised in a process of its own, by a strategy to be chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from ..edges.models import open_model
from ..facts.dialogue import ModelChoice
from ..facts.problem import Target
from ..report import bench_summary, whose
from ..run.campaign import Campaign, ended_badly, problem_files
from ..run.optimize import require_model, require_parts
from ..run.remote import bundle_folder
from . import config
from .clusters import HERE, ClusterChoice
from .deliver import bench_tables, stamp
from .folders import Many, run_all
from .options import SearchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """The strategy of a bench, the model that it asks, and who evaluates; without either the catalog's, here."""

    strategy: str | None
    model: str | None
    base_url: str
    effort: str | None
    wait: bool
    evaluator: str = ""
    without: tuple[str, ...] = ()
    tools: bool = False

    @classmethod
    def of(cls, given: SearchOptions, *, strategy: str | None = None, without: tuple[str, ...] = ()) -> BenchRequest:
        return cls(
            strategy=strategy, model=given.model, base_url=given.base_url, effort=given.effort,
            wait=not given.no_wait, evaluator=given.evaluator, without=without, tools=given.tools,
        )  # fmt: skip

    @property
    def flags(self) -> tuple[str, ...]:
        """As `optimize` takes them."""
        chosen = self.strategy or ("cutegen" if self.model else "catalog")
        require_model(chosen, self.model is not None)
        require_parts(chosen, self.without)
        if self.evaluator:
            bundle_folder(self.evaluator)
        named = (("--strategy", self.strategy), ("--model", self.model), ("--base-url", self.base_url),
                 ("--effort", self.effort), ("--evaluator", self.evaluator),
                 ("--without", ",".join(self.without)))  # fmt: skip
        words = tuple(word for flag, value in named if value for word in (flag, value))
        return (*words, *(("--tools",) if self.tools and self.model else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How many tasks still wait for a reply or another machine; those that failed, with whose fault each was, and the
    exit code for them."""

    pending: int
    failed: tuple[str, ...]
    code: int


def require_asked(asked: BenchRequest) -> None:
    """UserError, before any work, where the model that is named can't be asked: no key, an unknown provider."""
    if asked.model is not None:
        open_model(ModelChoice(name=asked.model, base_url=asked.base_url), run="", keys=config.key)


def usual_budget_s(asking: bool) -> float:
    """For each problem, where nothing is said of time."""
    return 3600.0 if asking else 120.0


def campaign_of(
    where: str, many: Many, *, target: Target, budget: str, settings: Sequence[str], asked: BenchRequest,
    usual_s: float | None = None,
) -> Campaign:  # fmt: skip
    """The campaign that the flags describe; UserError for those that don't go together. `usual_s`: the time of a budget
    that names none."""
    budget_s, limits = config.budget(budget, usual_s=usual_s or usual_budget_s(asked.model is not None))
    more = config.budget_text(budget_s, limits)
    return Campaign(
        files=(Path(where),) if Path(where).is_file() else problem_files(where, many.only),
        out=many.folder(where, "bench", target), target=target, budget_s=budget_s,
        settings=(*settings, *asked.flags), jobs=many.jobs, devices=many.devices, stamp=stamp(),
        budget="" if more == f"{budget_s:g}s" else more, wait=asked.wait,
    )  # fmt: skip


def bench_folder(
    campaign: Campaign, *, json_file: Path | None, say: Callable[[str], None], cluster: ClusterChoice = HERE
) -> tuple[tuple[RenderableType, ...], Ended]:
    """Run it, or go on with it; the tables to print, and how it ended."""
    result = run_all(campaign, summary=bench_summary, line=task_line, say=say, cluster=cluster)
    tasks = result["tasks"]
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    pending = sum(task.get("status") == "pending" for task in tasks)
    failed = [f"{t.get('problem')} ({whose(t)})" for t in tasks if t.get("status") == "failed"]
    return bench_tables(tasks), Ended(pending=pending, failed=tuple(failed), code=ended_badly(tasks))


def task_line(task: dict[str, Any]) -> str:
    ratio = task.get("ratio", {}).get("eager")
    speed = f"{ratio['mid']:.2f}x of eager" if ratio else task.get("verdict", {}).get("summary", "")
    return f"{task.get('problem')}: {task.get('status')} {speed}"
