"""Compilation in child processes: jobs are shared out among as many as there are cores, and each answers in lines."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..edges.gpu.machine import threads
from ..edges.sandbox.environment import common_environment, program
from ..edges.sandbox.offspring import kill_offspring, run_offspring
from .permits import most, permit

LIMIT_S = 240.0
_OURS = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TILEWRIGHT_NO_KERNEL_CACHE")  # what a child has that a cell has not


def shared_out(
    module: str, asked: Mapping[str, Any], tasks: Sequence[Any], *, folder: Path, jobs: int, limit_s: float = LIMIT_S
) -> list[str]:
    """The line that a child says of each of the tasks, in their order; "" for one that it did not come to within
    `limit_s`.

    A child runs the module in `folder`, which is on its path; it gets `asked` and its `jobs` as JSON. At most
    `jobs` of them run; of all runs' together no more than have a permit."""
    allowed = most(threads())
    count = max(1, min(jobs, allowed or jobs, len(tasks)))
    shares = [list(tasks[i::count]) for i in range(count)]
    with ThreadPoolExecutor(count) as pool:
        try:
            said = list(
                pool.map(lambda share: _child(module, {**asked, "jobs": share}, folder, allowed, limit_s), shares)
            )
        except KeyboardInterrupt:  # nobody waits for them any more, and the pool would
            pool.shutdown(wait=False, cancel_futures=True)
            kill_offspring()
            raise
    found = [""] * len(tasks)
    for i, lines in enumerate(said):
        places = range(i, len(tasks), count)
        for place, line in zip(places, lines, strict=False):
            found[place] = line
    return found


def _child(module: str, asked: Mapping[str, Any], folder: Path, allowed: int, limit_s: float) -> list[str]:
    # As in a cell: what else steers a compiler would make another kernel than the one that a cell asks for.
    environment = common_environment(threads=0, outer=os.environ)
    environment |= {name: os.environ[name] for name in _OURS if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), environment["PYTHONPATH"])))
    try:
        with permit(allowed):
            done = run_offspring(
                program(module), input=json.dumps(asked), timeout_s=limit_s, cwd=folder, env=environment,
            )  # fmt: skip
    except subprocess.TimeoutExpired as late:  # what it has said by then counts, but for a line that it was cut in
        said = late.output or b""
        text = said if isinstance(said, str) else said.decode(errors="replace")
        return text[: text.rfind("\n") + 1].splitlines()
    return done.stdout.splitlines()
