"""What `bench`, `audit` and `discover` do with a folder of problems: each file in a process of its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..edges.gpu.machine import machine
from ..edges.problems import is_task
from ..edges.toolchain import versions
from ..facts import codec
from ..facts.machine import Machine
from ..facts.problem import Target
from ..run.campaign import Campaign, problem_files, run_campaign
from . import config
from .clusters import HERE, ClusterChoice, dispatching, nodes_object
from .deliver import commit, stamp
from .options import FolderOptions, devices_of, numbers_of

Task = dict[str, Any]  # what `--json` prints of one problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderRequest:
    """What is the same for one file and for many; the budget is a problem's."""

    target: Target
    budget_s: float
    seed: int
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Which files of a folder (`only` those numbers), where their results are kept, and what works on them."""

    out: Path | None = None
    only: tuple[int, ...] | None = None
    jobs: int = 1
    devices: tuple[str, ...] = ()
    cluster: ClusterChoice = HERE

    def folder(self, where: str, verb: str, target: Target) -> Path:
        """Where results are kept."""
        name = Path(where.removeprefix("kernelbench:")).resolve().name
        return self.out or Path("runs") / f"{verb}-{name}-{target}"


def many_of(given: FolderOptions, out: Path | None) -> Many:
    return Many(
        out=out, only=numbers_of(given.only), jobs=given.jobs, devices=devices_of(given.devices),
        cluster=ClusterChoice.of(given.cluster, given.device_price),
    )  # fmt: skip


def is_one_problem(where: Path) -> bool:
    """A file, or what was meant to be one, or a task folder; else a folder of many."""
    return is_task(where) or where.is_file() or (where.suffix == ".py" and not where.is_dir())


def campaign_of(where: str, wish: FolderRequest, many: Many, *, verb: Literal["audit", "discover"]) -> Campaign:
    """Every problem file of a folder; the same results folder again continues with what has no result yet."""
    return Campaign(
        files=problem_files(where, many.only), out=many.folder(where, verb, wish.target), target=wish.target,
        budget_s=wish.budget_s, settings=("--seed", str(wish.seed), *config.env_flags(wish.env)), jobs=many.jobs,
        devices=many.devices, stamp=stamp(), verb=verb,
    )  # fmt: skip


def run_all(
    campaign: Campaign, *, summary: Callable[[Sequence[Task]], dict[str, Any]], line: Callable[[Task], str],
    say: Callable[[str], None], cluster: ClusterChoice = HERE,
) -> dict[str, Any]:  # fmt: skip
    """Run a campaign, a `line` of progress for each task; what `--json` prints, with the tasks in it."""
    if cluster.engine:
        with dispatching(cluster, campaign, say=say) as dispatch:
            tasks = dispatch.run(campaign, seen=lambda task: say(line(task)))
        nodes = nodes_object(dispatch.progress(), cluster)
        return tasks_object(tasks, summary(tasks), machine=None) | {"nodes": nodes}
    # Measured now, while nothing else runs.
    here = None if campaign.elsewhere else machine(campaign.target, cache_dir=config.cache_dir())
    tasks = run_campaign(campaign, seen=lambda task: say(line(task)))
    return tasks_object(tasks, summary(tasks), machine=here)


def tasks_object(tasks: Sequence[Task], summary: dict[str, Any], *, machine: Machine | None) -> dict[str, Any]:
    """What `--json` prints. `machine` of None: another evaluated, as the tasks say."""
    said = next((task["machine"] for task in tasks if "machine" in task), None)
    if machine is not None:
        plain = codec.to_plain(machine)
        said = {k: v for k, v in plain.items() if k != "$"} | {"versions": dict(versions())}
    command = shlex.join(["tilewright", *sys.argv[1:]])
    return {"tasks": list(tasks), "summary": summary, "command": command, "commit": commit(), "machine": said}
