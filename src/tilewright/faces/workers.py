"""`tilewright worker`: one process that serves a bundle, or several that share its problems."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from ..edges.bundle import Bundle
from ..edges.sandbox.offspring import offspring
from ..facts.errors import HarnessError, UserError
from ..run.worker import Visit, Worker


def served(folder: Path, *, cache: Path, jobs: int, watch: bool, say: Callable[[str], None]) -> Visit:
    """Serve the bundle by so many processes, this one among them; what came of all of them. With `watch` they stay
    until they are interrupted, and may come before the folder; else UserError where there is none."""
    if not watch and not folder.is_dir():
        raise UserError(f"{folder}: no such folder; `--evaluator` makes it, or wait for it with --watch")
    with Worker(Bundle(folder), cache=cache, say=say) as worker:
        problems = worker.prepare()  # the machine is measured while nothing else runs on it
        with ExitStack() as beside:  # they end with us
            count = (jobs if watch else min(jobs, problems)) - 1
            others = [beside.enter_context(_beside(folder, watch=watch)) for _ in range(count)]
            return sum_of([worker.stay() if watch else worker.visit(), *map(_ended, others)])


def sum_of(visits: list[Visit]) -> Visit:
    return Visit(
        answered=sum(v.answered for v in visits), faults=sum(v.faults for v in visits),
        left=sum(v.left for v in visits),
    )  # fmt: skip


def _beside(folder: Path, *, watch: bool) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tilewright", "worker", str(folder), "--json", *(["--watch"] if watch else [])]
    return offspring(command, polite=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str]) -> Visit:
    said, _ = process.communicate()
    try:
        return Visit(**json.loads(said))
    except (ValueError, TypeError):
        raise HarnessError(f"a worker beside this one ended with {process.returncode}; what it said is above") from None
