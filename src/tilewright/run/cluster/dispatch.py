"""A campaign over an engine: orders for what has no result yet, each result kept once, a lost task done once more."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...edges.ledger import Ledger, make_folder
from ...facts.errors import Pending, UserError
from ..campaign import Campaign, Task, failed_task, keep_task, kept_task
from .engine import Engine, Reported
from .seat import archived, unpacked
from .task import BegunRun, ClusterNode, LostTask, TaskOrder, TaskResult

ATTEMPTS = 2  # the second on another node, where there is one
RESULTS = "results.jsonl"
_POLL_S = 1.0
_PATIENCE_S = 900.0  # without a node that lives or starts

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """What a node has done for a campaign: `busy_s` adds up the wall time of its tasks, `device_s` for how long they
    held the device's lease."""

    node: ClusterNode
    tasks: int = 0
    busy_s: float = 0.0
    device_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a campaign is."""

    done: int
    wanted: int
    lost: int  # attempts that a node did not bring to an end
    shares: tuple[NodeShare, ...]


Watch = Callable[[Progress], None]


@dataclass(kw_only=True)
class Dispatch:
    """Runs campaigns, one after another, over one engine; `lines` is the JSONL file to which each result adds a line.
    `patience_s`: how long to wait while no node lives."""

    engine: Engine
    lines: Path
    say: Say
    watch: Watch = lambda progress: None
    patience_s: float = _PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    _shares: dict[str, NodeShare] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _lost: int = 0
    _wanted: int = 0
    _done: int = 0

    def run(self, campaign: Campaign, *, seen: Callable[[Task], None]) -> tuple[Task, ...]:
        """Tasks with a result of the same stamp and flags are not done again. In the order of `files`. Raises Pending
        where no node is left; the same call goes on from what is kept."""
        make_folder(campaign.out)
        _refuse_paid_replies(campaign)
        tasks = {file: kept for file in campaign.files if (kept := kept_task(campaign, file)) is not None}
        self._wanted += len(campaign.files)
        self._done += len(tasks)
        made = {f: TaskOrder.of(campaign, f, begun=_begun(campaign, f)) for f in campaign.files if f not in tasks}
        orders = {order.key: order for order in made.values()}
        files = {order.key: file for file, order in made.items()}
        self._complete_lines(campaign, tasks)
        for task in tasks.values():
            seen(task)
        for order in orders.values():
            self.engine.submit(order)
        for key, task in self._results(campaign, orders, files):
            tasks[files[key]] = task
            seen(task)
        return tuple(tasks[file] for file in campaign.files)

    def _results(
        self, campaign: Campaign, orders: dict[str, TaskOrder], files: Mapping[str, Path]
    ) -> Iterator[tuple[str, Task]]:
        """Each key with the task that counts, as it comes; `orders` loses what is done."""
        alive_at = self.clock()
        while orders:
            for report in self.engine.reports(_POLL_S):
                task = self._taken(campaign, report, orders, files)
                if task is not None:
                    self._done += 1
                    yield report.key, task
            nodes = self.engine.nodes()
            self._tell(nodes)
            if any(node.state in ("starting", "ready") for node in nodes):
                alive_at = self.clock()
            elif self.clock() - alive_at > self.patience_s or (nodes and not self._may_come(nodes)):
                raise Pending(f"{len(orders)} tasks are left and no node is: {_why(nodes)}")

    @staticmethod
    def _may_come(nodes: tuple[ClusterNode, ...]) -> bool:
        """Whether the place of a node that is gone may be taken by another; quarantined ones stay as they are."""
        return any(node.state != "quarantined" for node in nodes)

    def _taken(
        self, campaign: Campaign, report: Reported, orders: dict[str, TaskOrder], files: Mapping[str, Path]
    ) -> Task | None:
        """The task of a report that ends its order. A second result of one key counts for nothing."""
        order = orders.get(report.key)
        if isinstance(report, TaskResult) and report.task:
            self._add(report)
        if order is None:
            return None
        if isinstance(report, TaskResult) and not _fault(report):
            self.engine.cancel(report.key)
            task = self._kept(campaign, report, files[report.key])
            del orders[report.key]
            return task
        if report.attempt < order.attempt:
            return None  # the attempt behind it is under way already
        self._lost += 1
        node, why = (report.node, report.why) if isinstance(report, LostTask) else (report.node.name, _fault(report))
        if order.attempt + 1 < ATTEMPTS:
            self.say(f"{files[report.key].stem}: {node}: {why}; once more elsewhere")
            orders[report.key] = order.again()
            self.engine.submit(orders[report.key])
            return None
        del orders[report.key]
        file = files[report.key]
        return self._written(campaign, file, failed_task(file, "lost", f"{node}: {why}", whose="machine"), node=None)

    def _kept(self, campaign: Campaign, result: TaskResult, file: Path) -> Task:
        out = campaign.out / file.stem
        if result.archive:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            unpacked(result.archive, out)
            (out / ".stamp").write_text(json.dumps(campaign.made_by))  # the local pool would go on from here, too
        return self._written(campaign, file, _with_paths_of_here(result, out, file), node=result)

    def _written(self, campaign: Campaign, file: Path, task: Task, *, node: TaskResult | None) -> Task:
        task = task | campaign.made_by | {"stamp": campaign.stamp, "file": file.name}
        if node is not None:
            task |= {"node": node.node.identity, "wall_s": node.wall_s, "attempt": node.attempt}
        keep_task(campaign.out / f"{file.stem}.json", task)
        self._append(campaign, file, task)
        return task

    def _append(self, campaign: Campaign, file: Path, task: Task) -> None:
        line = {"out": str(campaign.out), **task}
        with self.lines.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def _complete_lines(self, campaign: Campaign, tasks: Mapping[Path, Task]) -> None:
        """A result that was kept just before this process was killed has no line yet; a torn line is dropped."""
        have: set[tuple[str, str, str]] = set()
        whole: list[str] = []
        with suppress(FileNotFoundError):
            for text in self.lines.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):
                    line = json.loads(text)
                    have.add((line.get("out", ""), line.get("file", ""), json.dumps(line.get("flags"))))
                    whole.append(text)
            part = self.lines.with_suffix(".part")
            part.write_text("".join(f"{text}\n" for text in whole), encoding="utf-8")
            part.replace(self.lines)
        for file, task in tasks.items():
            if (str(campaign.out), file.name, json.dumps(task.get("flags"))) not in have:
                self._append(campaign, file, task)

    def _add(self, result: TaskResult) -> None:
        old = self._shares.get(result.node.name, NodeShare(node=result.node))
        held: Any = result.task.get("device_seconds") or {}
        self._shares[result.node.name] = replace(
            old, node=result.node, tasks=old.tasks + 1, busy_s=old.busy_s + result.wall_s,
            device_s=old.device_s + float(held.get("all", 0.0)),
        )  # fmt: skip

    def _tell(self, nodes: tuple[ClusterNode, ...]) -> None:
        names = {node.name for node in nodes}
        self._shares = {name: share for name, share in self._shares.items() if name in names or share.tasks}
        for node in nodes:
            line = f"{node.name}: {node.state}" + (f": {node.why}" if node.why else _calibration(node))
            if node.state != "starting" and f"{node.name} {node.state}" not in self._told:
                self._told.add(f"{node.name} {node.state}")
                self.say(line)
            share = self._shares.get(node.name)
            if share is None or node.state != "starting":
                self._shares[node.name] = replace(share or NodeShare(node=node), node=node)
        self.watch(self.progress())

    def progress(self) -> Progress:
        """How far all campaigns are that were run here."""
        return Progress(done=self._done, wanted=self._wanted, lost=self._lost, shares=tuple(self._shares.values()))


def _with_paths_of_here(result: TaskResult, out: Path, file: Path) -> Task:
    """The task with the driver's names of the run's folder and the problem's file, for the node's."""
    text = json.dumps(result.task)
    if result.folder:
        there = Path(result.folder)  # ROOT/out/STEM
        for old, new in ((there, out), (there.parents[1] / file.name, file)):
            text = text.replace(json.dumps(str(old))[1:-1], json.dumps(str(new))[1:-1])
    task: Task = json.loads(text)
    return task


def _calibration(node: ClusterNode) -> str:
    return f", {node.device}, {node.driver}, {node.toolchain}, A/A {node.aa:.3f} ± {node.aa_spread / 2:.3f}"


def _why(nodes: tuple[ClusterNode, ...]) -> str:
    return "; ".join(f"{n.name}: {n.state}{': ' + n.why if n.why else ''}" for n in nodes) or "none has come"


def _fault(result: TaskResult) -> str:
    """Why the result does not count. Ratios are of one machine and process: what the task says of its machine is what
    its node is."""
    told = result.task.get("machine")
    if not result.fault and isinstance(told, dict) and told.get("key") != result.node.machine:
        return f"its times were measured on another machine, {told.get('device')}"
    return result.fault


def _begun(campaign: Campaign, file: Path) -> BegunRun | None:
    """A run of this campaign with replies that took their price goes on from where it was."""
    out = campaign.out / file.stem
    if not campaign.asks or not (out / "run.db").exists():
        return None
    with Ledger(out / "run.db", readonly=True) as ledger:
        context = ledger.context()
    return BegunRun(machine=context.machine.key, archive=archived(out)) if context is not None else None


def _refuse_paid_replies(campaign: Campaign) -> None:
    """As the local pool: a run with replies that took their price is not begun anew under other flags."""
    for file in campaign.files if campaign.asks else ():
        out = campaign.out / file.stem
        stamp = out / ".stamp"
        ours = stamp.exists() and stamp.read_text() == json.dumps(campaign.made_by)
        if (out / "run.db").exists() and not ours:
            raise UserError(
                f"{out}: holds a run under other flags, with replies that took their price; choose another --out"
            )
