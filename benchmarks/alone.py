"""Tasks that compile beside one another and are measured one at a time, each by a process of its own; and calls as CUDA
graphs. For the scripts beside this one."""

from __future__ import annotations

import argparse
import fcntl
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from tilewright.faces.deliver import commit

TOGETHER = 14  # processes


@contextmanager
def alone() -> Iterator[None]:
    """Nobody else measures meanwhile; who compiles takes processors, so what is timed must not wait for the host."""
    with open(Path(tempfile.gettempdir()) / "measuring.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        torch.cuda.synchronize()


def graphed(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """These calls one after the other, without the host's part; the first is made once before."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay  # type: ignore[no-any-return]


def told(samples: dict[str, list[float]], kinds: Sequence[str]) -> dict[str, Any]:
    """Of players whose names begin with these, the best of each by the first half of the rounds, its median of the
    second half, and that over the first kind's, with the quartiles of the rounds."""
    half = len(next(iter(samples.values()))) // 2
    early, late = ({who: ts[part] for who, ts in samples.items()} for part in (slice(half), slice(half, None)))
    best = {kind: min((w for w in early if w.startswith(kind)), key=lambda w: median(early[w])) for kind in kinds}
    ours, *others = kinds
    ratios = {k: [a / b for a, b in zip(late[best[k]], late[best[ours]], strict=True)] for k in others}
    return {
        "best": best, "us": {kind: median(late[who]) for kind, who in best.items()},
        "ratio": {kind: [*quantiles(rs, n=4)] for kind, rs in ratios.items()},
        "points_us": {who: median(ts) for who, ts in early.items()},
    }  # fmt: skip


def shown(name: str, found: dict[str, Any]) -> str:
    """A task's line."""
    cells = [f"{kind} {us:.1f}" for kind, us in found["us"].items()]
    ratios = [f"{kind} {r[1]:.2f} ({r[0]:.2f}-{r[2]:.2f})" for kind, r in found["ratio"].items()]
    wrong = " ".join(f"{kind} {e:.1e}" for kind, e in found["off"].items())
    return (
        f"{name:34} us: {'  '.join(cells)}  floor {found['floor_us']:.1f}; over ours: {', '.join(ratios)}; "
        f"off {wrong}; best {found['best']}"
    )


def command_of(
    script: str, about: str | None, tasks: Iterable[str], measured: Callable[[str, int], dict[str, Any]], *, points: int
) -> int:
    """What a script does when it is run: all tasks, or for itself one of them, whose record is printed. The exit
    status."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="tasks whose names begin with one of these, between semicolons")
    parser.add_argument("--points", type=int, default=points)
    parser.add_argument("--worker", default="", help="for the script itself: one task, whose result is printed")
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(measured(asked.worker, asked.points)), flush=True)
        return 0
    names = [name for name in tasks if name.startswith(tuple(asked.only.split(";")))]
    return _every_task(script, names, points=asked.points, json_file=asked.json)


def _every_task(script: str, names: Sequence[str], *, points: int, json_file: Path | None) -> int:
    """Run `script --points P --worker NAME` for each, which prints a record; print lines, write the file as they come.
    The exit status."""
    about: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "tasks": {},
    }  # fmt: skip
    waiting, running, failed = list(names), dict[str, subprocess.Popen[str]](), 0
    while waiting or running:
        while waiting and len(running) < TOGETHER:
            name = waiting.pop(0)
            command = [sys.executable, script, "--points", str(points), "--worker", name]
            running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            process = running.pop(name)
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            if process.returncode or not lines:
                failed += 1
                print(f"{name}: exit {process.returncode}", flush=True)
                continue
            about["tasks"][name] = json.loads(lines[-1])
            print(shown(name, about["tasks"][name]), flush=True)
            if json_file:
                rows = ",\n  ".join(f"{json.dumps(n)}: {json.dumps(t)}" for n, t in about["tasks"].items())
                head = json.dumps(about | {"tasks": {}}, indent=1).removesuffix("{}\n}")
                json_file.write_text(f"{head}{{\n  {rows}\n }}\n}}\n")
        time.sleep(0.2)
    return min(failed, 1)
