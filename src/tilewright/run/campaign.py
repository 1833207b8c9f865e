"""Many problems, one table: each in a process of its own, its result kept as a file, so that a crash stops nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any, Literal

from ..edges.gpu.lease import IN_TURNS
from ..edges.ledger import make_folder
from ..edges.sandbox.offspring import end_offspring, ending, offspring
from ..facts.errors import HarnessError, Lack, UserError
from ..facts.problem import Target

# What a task may take beyond its budget (start, baselines, judging) before it counts as hung; to optimise, both twice.
_SPARE_S = 120.0
_CRASHED, _HUNG = "crashed", "hung"
_USER, _PENDING = 2, 75  # exit codes; the latter of a run that waits for a reply or another machine
_LAST_LINES, _LAST_CHARACTERS = 6, 600  # of what a crashed one printed

_OF_THE_MACHINE = ("the disk is full", "the machine", "internal: the machine")  # as the last line begins
_NOT_WRITTEN = ("can't be written", "permission denied", "can't keep the measured rates")
Whose = Literal["machine", "project", "problem", "candidate"]
Verb = Literal["optimize", "audit", "discover"]

Task = dict[str, Any]  # one object as `optimize --json` prints it: foreign bytes, read back from a child process


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Problems to optimise (audit, look into) under one setting; `out` keeps a folder and a result file for each."""

    files: tuple[Path, ...]
    out: Path
    target: Target
    budget_s: float
    settings: tuple[str, ...]  # further flags of each task's command
    jobs: int  # tasks at once on each device; they take turns to measure
    devices: tuple[str, ...]  # values of CUDA_VISIBLE_DEVICES to spread over; empty: this process's own
    stamp: str  # what made the results (version and commit); those of another stamp, or settings, are made anew
    verb: Verb = "optimize"
    budget: str = ""  # as `--budget` takes it, where it is not time alone
    wait: bool = True  # for a model and another machine; else a task is left pending, and goes on at the next call

    @property
    def flags(self) -> list[str]:
        return ["--target", self.target, "--budget", self.budget or f"{self.budget_s:g}s", *self.settings]

    @property
    def asks(self) -> bool:
        """Whether a model is asked, whose replies have their price: no run with any is thrown away."""
        return "--model" in self.settings

    @property
    def elsewhere(self) -> bool:
        """Whether another machine evaluates: nobody knows when its answers come."""
        return "--evaluator" in self.settings

    @property
    def made_by(self) -> dict[str, object]:
        """What a kept result must say of itself to count."""
        return {"flags": self.flags} if self.asks else {"stamp": self.stamp, "flags": self.flags}


def problem_files(where: str, only: tuple[int, ...] | None) -> tuple[Path, ...]:
    """The problem files of a folder or of `kernelbench:PATH/levelN`, by their numbers where their names begin with one.

    `only` keeps those whose name begins with one of the numbers, in their order: what comes last is what a run that is
    cut off lacks. UserError if nothing is left."""
    folder = Path(where.removeprefix("kernelbench:"))
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give a folder of problem files, or kernelbench:PATH/levelN")
    files = sorted((f for f in folder.glob("*.py") if not f.name.startswith("_")), key=lambda f: (_number(f), f.name))
    chosen = tuple(files if only is None else (f for number in only for f in files if _number(f) == number))
    if not chosen:
        raise UserError(f"{folder}: no problem file{' with such a number (--only)' if files else ''} there")
    return chosen


def _number(path: Path) -> int:
    found = re.match(r"\d+", path.name)
    return int(found[0]) if found else 0


def run_campaign(campaign: Campaign, *, seen: Callable[[Task], None]) -> tuple[Task, ...]:
    """Optimise, audit or look into every problem; tasks with a result of the same stamp and flags are not run again,
    and those that ended without a verdict beside others once more by themselves. In the order of `files`. Raises Lack
    where a task needs what the machine lacks: none is booked for it, and no further one is begun."""
    make_folder(campaign.out)
    tasks = _in_turns(campaign, seen, kept=True)
    broken = tuple(f for f, t in tasks.items() if _broke(t)) if campaign.jobs > 1 else ()
    if broken:  # beside fewer others, memory may suffice
        tasks |= _in_turns(replace(campaign, files=broken, jobs=1), seen, kept=False)
    return tuple(tasks[f] for f in campaign.files)


def _in_turns(campaign: Campaign, seen: Callable[[Task], None], *, kept: bool) -> dict[Path, Task]:
    free: Queue[dict[str, str]] = Queue()
    for device in campaign.devices or ("",):
        for _ in range(campaign.jobs):
            place = {"CUDA_VISIBLE_DEVICES": device} if device else {}
            free.put(place | ({IN_TURNS: "1"} if campaign.jobs > 1 else {}))

    lacking = Event()  # set where a task says what the machine lacks: the others would say the same

    def one(file: Path) -> Task:
        task = kept_task(campaign, file) if kept else None
        if lacking.is_set():
            return {}
        if task is None:
            place = free.get()
            try:
                task = run_task(campaign, file, place) | campaign.made_by | {"stamp": campaign.stamp, "file": file.name}
            except Lack:
                lacking.set()
                raise
            finally:
                free.put(place)
            keep_task(campaign.out / f"{file.stem}.json", task)
        seen(task)
        return task

    with ThreadPoolExecutor(max_workers=free.qsize()) as pool:
        try:
            return dict(zip(campaign.files, pool.map(one, campaign.files), strict=True))
        except KeyboardInterrupt:  # the pool waits for the tasks that run, and these end now
            pool.shutdown(wait=False, cancel_futures=True)
            end_offspring()
            raise


def ended_badly(tasks: Sequence[Task]) -> int:
    """The exit code for what failed: 3 where it was our fault, else 2 where it was a problem's or the machine's, else 1
    where it was a candidate's; 0 where nothing did."""
    codes = {"project": 3, "problem": 2, "machine": 2, "candidate": 1}
    failed = [t for t in tasks if t.get("status") == "failed"]
    return max((codes[t.get("whose", "candidate")] for t in failed), default=0)


def _broke(task: Task) -> bool:
    verdict = task.get("verdict")  # an audit's is a word
    return isinstance(verdict, dict) and verdict.get("reason") in (_CRASHED, _HUNG)


def kept_task(campaign: Campaign, file: Path) -> Task | None:
    """What is kept of the file's task; None where nothing is that counts for this campaign."""
    try:
        task: Task = json.loads((campaign.out / f"{file.stem}.json").read_text())
    except (OSError, ValueError):
        return None
    goes_on = task.get("status") == "pending" or ((campaign.asks or campaign.elsewhere) and _broke(task))
    return None if goes_on or not task.items() >= campaign.made_by.items() else task


def keep_task(path: Path, task: Task) -> None:
    """Write the task's file, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(task, indent=1))
    part.replace(path)


def run_task(campaign: Campaign, file: Path, place: Mapping[str, str]) -> Task:
    """Run one problem's command in a process of its own with the environment `place` besides; a task comes back
    whatever becomes of it. Raises Lack, and KeyboardInterrupt where this process is about to end."""
    limit_s: float | None = campaign.budget_s + _SPARE_S
    if campaign.verb == "optimize":
        command = _optimize(campaign, file)
        limit_s = None if campaign.elsewhere and campaign.wait else 2 * campaign.jobs * (campaign.budget_s + _SPARE_S)
    else:
        command = [campaign.verb, str(file), *campaign.flags, "--json"]
    return _child([sys.executable, "-m", "tilewright", *command], file, place, limit_s=limit_s)


def _optimize(campaign: Campaign, file: Path) -> list[str]:
    """Start the task's run, or continue it where one of the same stamp and flags has begun. UserError where it would
    take the place of one whose replies were paid for."""
    out = campaign.out / file.stem
    made_by = json.dumps(campaign.made_by)
    waiting = [] if campaign.wait else ["--no-wait"]
    if (out / "run.db").exists() and (out / ".stamp").exists() and (out / ".stamp").read_text() == made_by:
        return ["resume", str(out), *waiting, "--json"]
    if campaign.asks and (out / "run.db").exists():
        raise UserError(
            f"{out}: holds a run under other flags, with replies that took their price; choose another --out"
        )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / ".stamp").write_text(made_by)
    return ["optimize", str(file), "--out", str(out), *campaign.flags, *waiting, "--json"]


def _child(command: Sequence[str], file: Path, place: Mapping[str, str], *, limit_s: float | None) -> Task:
    """Run one task as a process group of its own; whatever becomes of it, a task comes back. Raises KeyboardInterrupt
    where this process is about to end: the task was not to blame."""
    pipe = subprocess.PIPE
    given = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "text": True, "errors": "replace"}
    try:
        with offspring(command, polite=True, env=os.environ | place, **given) as process:
            stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return failed_task(file, _HUNG, f"no result after {limit_s:.0f} s", whose="project")
    except HarnessError:
        raise KeyboardInterrupt from None
    if ending():
        raise KeyboardInterrupt
    try:
        task = json.loads(stdout)
    except ValueError:
        task = None
    if isinstance(task, dict):
        return task
    lines = [line for line in stderr.splitlines() if line.strip()]
    if process.returncode == _PENDING:
        said = lines[-1].removeprefix("tilewright: pending: ")[-_LAST_CHARACTERS:] if lines else ""
        return _without_result(file, "pending", {"stage": "search", "reason": "pending", "summary": said})
    last = lines[-1].removeprefix("tilewright: ") if lines else ""
    if last.startswith(Lack.SAID):
        raise Lack(last)
    said = " ".join(" ".join(lines[-_LAST_LINES:]).split())[-_LAST_CHARACTERS:] or "no output"
    return failed_task(file, _CRASHED, f"exit {process.returncode}: {said}", whose=_whose(process.returncode, lines))


def _whose(code: int, lines: Sequence[str]) -> Whose:
    """Whose fault it was that a child ended with this code and these last lines."""
    last = lines[-1].removeprefix("tilewright: ") if lines else ""
    if code == -signal.SIGKILL or last.startswith(_OF_THE_MACHINE) or any(part in last for part in _NOT_WRITTEN):
        return "machine"
    return "problem" if code == _USER else "project"


def failed_task(file: Path, reason: str, summary: str, *, whose: Whose) -> Task:
    """The task of a problem for which there is no result, and whose fault that is."""
    return _without_result(file, "failed", {"stage": "run", "reason": reason, "summary": summary}) | {"whose": whose}


def _without_result(file: Path, status: str, verdict: dict[str, str]) -> Task:
    told = {"accepted": False} | verdict
    return {"problem": file.stem, "status": status, "verdict": told, "ratio": {}, "times_ns": {}}
