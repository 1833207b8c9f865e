"""`tilewright worker`: one process that serves a bundle, or several that share its problems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from ..edges.bundle import Bundle, NodeQueue
from ..edges.gpu.lease import seen_here
from ..edges.sandbox.offspring import ending, offspring
from ..facts.errors import HarnessError, UserError
from ..facts.problem import Target
from ..run.cluster.campaign_worker import CampaignWorker
from ..run.cluster.seat import Seat, here
from ..run.worker import Visit, Worker
from . import config
from .clusters import visible_gpus

_RESTARTS = 2  # of a GPU's worker


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


def served_campaign(folder: Path, *, target: Target, jobs: int, say: Callable[[str], None]) -> int:
    """Take tasks of the campaign whose queue lies in the folder, one worker for each GPU that is visible; how many were
    done by this process. UserError where there is no such folder, or no GPU."""
    if not (folder / "orders").is_dir():
        raise UserError(f"{folder}: no campaign's queue; `tilewright bench --cluster` makes it")
    gpus = visible_gpus() if target == "cuda" else ()
    if len(gpus) > 1:
        with ThreadPoolExecutor(len(gpus)) as beside:
            list(beside.map(lambda gpu: _kept_on(folder, gpu, jobs=jobs), gpus))
        return 0
    place = f"gpu{seen_here() or gpus[0]}" if target == "cuda" else "cpu"
    seat = Seat(node=here(place, host=config.node_name()), target=target, alone=True)
    try:
        return CampaignWorker(queue=NodeQueue(folder), seat=seat, say=say, jobs=jobs).serve()
    finally:
        seat.close()


def _kept_on(folder: Path, gpu: str, *, jobs: int) -> None:
    """A worker for one GPU until it leaves; one that is killed is started again, a few times at most."""
    command = [sys.executable, "-m", "tilewright", "worker", str(folder), "--campaign", "cuda", "--jobs", str(jobs)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu}
    for _ in range(1 + _RESTARTS):
        with offspring(command, polite=True, stdin=subprocess.DEVNULL, env=environment) as process:
            if process.wait() == 0 or ending():
                return


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
