"""`tilewright discover` over folders of problems, each within a time of its own, and one table of what came of it.

    python benchmarks/discoveries.py look PATH/level2 PATH/level3 --out FOLDER [--devices 0,1] [--jobs 6] [--limit 120]
    python benchmarks/discoveries.py table FOLDER --json benchmarks/results/h200/discover.json
    python benchmarks/discoveries.py page benchmarks/results/h200/discover.json docs/coverage.md

`look` keeps a file for each problem as it comes, goes on where it was stopped, and ends one that takes longer than
`--limit` seconds: on each GPU `--jobs` wait for the one that has it. `table` prints the means of each level, what is
left to torch, and what failed and why, from such folders; no GPU is needed. `page` writes a line for every module.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from queue import Queue
from typing import Any

from tilewright.edges.gpu.machine import machine
from tilewright.edges.toolchain import versions
from tilewright.faces import config
from tilewright.faces.discoveries import discovered
from tilewright.faces.folders import Many, Wish
from tilewright.facts import codec
from tilewright.report import discoveries_summary

Task = dict[str, Any]
_KEPT = (
    "problem",
    "level",
    "said",
    "wall_s",
    "module_ns",
    "calls_ns",
    "floor_ns",
    "rounds",
    "covered",
    "gain",
    "parts",
    "verdict",
)
_OF_A_PART = ("pattern", "title", "rule", "why", "ns", "share", "floor_ns", "gain")
_LINES = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    look = actions.add_parser("look")
    look.add_argument("levels", type=Path, nargs="+")
    look.add_argument("--out", type=Path, required=True)
    look.add_argument("--target", default="cuda")
    look.add_argument("--jobs", type=int, default=6)
    look.add_argument("--devices", default="", help="GPUs to spread them over, e.g. 0,1; default: one")
    look.add_argument("--limit", type=float, default=120.0, help="seconds for one problem")
    look.add_argument("--seconds", type=float, default=1e9, help="for all; what has no result then has none yet")
    look.add_argument("--budget", default="0.3s", help="seconds after which no round of timing is begun")
    told = actions.add_parser("table")
    told.add_argument("folder", type=Path)
    told.add_argument("--json", type=Path)
    serving = actions.add_parser("serve")
    serving.add_argument("--target", default="cuda")
    serving.add_argument("--budget", default="0.5s")
    paged = actions.add_parser("page")
    paged.add_argument("result", type=Path)
    paged.add_argument("to", type=Path)
    asked = parser.parse_args()
    if asked.action == "page":
        asked.to.write_text("\n".join(page(json.loads(asked.result.read_text()))) + "\n", encoding="utf-8")
        return
    if asked.action == "serve":
        serve(asked)
        return
    if asked.action == "table":
        found = numbers(asked.folder)
        print("\n".join(lines(found)))
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    put(asked.out / "run.json", about(asked))
    todo = [(level.name, file) for level in asked.levels for file in problems(level)]
    ends = time.monotonic() + asked.seconds
    free: Queue[Place] = Queue()
    for device in [*asked.devices.split(",")] * asked.jobs:
        free.put(Place(device, asked))
    with ThreadPoolExecutor(free.qsize()) as pool:
        for line in pool.map(lambda job: looked(*job, free=free, ends=ends, asked=asked), todo):
            if line:
                print(line, flush=True)
    while not free.empty():
        free.get().end()


def problems(level: Path) -> list[Path]:
    """In the order of their numbers."""
    return sorted(level.glob("*.py"), key=lambda f: (int(re.match(r"\d*", f.name)[0] or 0), f.name))  # type: ignore[index]


def about(asked: argparse.Namespace) -> Task:
    measured = codec.to_plain(machine(asked.target, cache_dir=config.cache_dir()))
    where = " ".join(f"PATH/{level.name}" for level in asked.levels)
    on = f"--devices {asked.devices} " if asked.devices else ""
    how = f"{on}--jobs {asked.jobs} --limit {asked.limit:g} --budget {asked.budget}"
    return {
        "command": f"python benchmarks/discoveries.py look {where} --out FOLDER {how}", "commit": config.commit(),
        "date": time.strftime("%Y-%m-%d"), "limit_s": asked.limit,
        "machine": {k: v for k, v in measured.items() if k != "$"} | {"versions": dict(versions())},
    }  # fmt: skip


class Place:
    """A process on one of the devices that looks into one problem after another; it imports torch once, and is ended
    and begun anew where a problem takes too long or breaks it."""

    def __init__(self, device: str, asked: argparse.Namespace) -> None:
        self._command = [sys.executable, __file__, "serve", "--target", asked.target, "--budget", asked.budget]
        self._environment = os.environ | ({"CUDA_VISIBLE_DEVICES": device} if device else {})
        self._child: subprocess.Popen[str] | None = None

    def asked(self, file: Path, limit_s: float) -> Task | None:
        """What it found, or why it found nothing; None where time was up."""
        if self._child is None:
            self._child = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(f"{file}\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline() if wait([self._child.stdout], limit_s) else None
        if not line:
            self.end()
            return None if line is None else failed(file, "its process broke off")
        task: Task = json.loads(line)
        return task

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def failed(file: Path, why: str) -> Task:
    return {"problem": file.stem, "verdict": {"reason": "failed", "summary": why[-300:]}}


def serve(asked: argparse.Namespace) -> None:
    """Look into each file that a line of the standard input names; say what was found in a line each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes elsewhere
    wish = Wish(target=asked.target, budget_s=config.seconds(asked.budget), seed=0)
    for line in sys.stdin:
        file, said = Path(line.strip()), list[str]()
        try:
            found = discovered(str(file), wish, Many(), svg=None, say=said.append).object
        except Exception as error:  # of whatever kind, it is this problem's alone
            found = failed(file, (str(error).splitlines() or [""])[0] or type(error).__name__)
        print(json.dumps(found | {"said": said}), file=answers, flush=True)


def looked(level: str, file: Path, *, free: Queue[Place], ends: float, asked: argparse.Namespace) -> str:
    """One problem, on a place that is free; a line of what came of it, "" where that is known or time is up."""
    place: Path = asked.out / level / f"{file.stem}.json"
    limit_s = min(asked.limit, ends - time.monotonic())
    if place.exists() or limit_s <= 0:
        return ""
    on, began = free.get(), time.monotonic()
    try:
        task = on.asked(file, limit_s)
    finally:
        free.put(on)
    if task is None and limit_s < asked.limit:
        return ""
    task = task or failed(file, f"no result within {asked.limit:g} s")
    put(place, task | {"level": level, "wall_s": round(time.monotonic() - began, 1)})
    told = f"{task['covered']:.0%} in patterns" if "parts" in task else task["verdict"]["summary"][:100]
    return f"{level} {file.stem}: {told} ({time.monotonic() - began:.0f} s)"


def put(place: Path, found: Task) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1))
    part.replace(place)


def numbers(folder: Path) -> Task:
    """What the result file holds: by level the summary, and of each problem all but its single operators."""
    levels = {
        level.name: [json.loads(f.read_text()) for f in problems_in(level)]
        for level in sorted(folder.iterdir())
        if level.is_dir()
    }
    return json.loads((folder / "run.json").read_text()) | {
        "levels": {name: discoveries_summary(tasks) for name, tasks in levels.items()},
        "tasks": [short(task) | {"level": name} for name, tasks in levels.items() for task in tasks],
    }


def problems_in(level: Path) -> list[Path]:
    return sorted(level.glob("*.json"), key=lambda f: (int(re.match(r"\d*", f.name)[0] or 0), f.name))  # type: ignore[index]


def short(task: Task) -> Task:
    parts = [{k: p[k] for k in _OF_A_PART if p.get(k) not in ("", None)} for p in task.get("parts", [])]
    return {k: task[k] for k in _KEPT if k in task} | ({"parts": parts} if parts else {})


def lines(found: Task) -> Iterator[str]:
    yield "| | looked into | in patterns, mean | median | could win | failed |"
    yield "|---|---|---|---|---|---|"
    for name, of in found["levels"].items():
        seen = of["tasks"] - of["failed"]
        if seen:
            yield (
                f"| {name} | {seen} | {of['mean_covered']:.0%} | {of['median_covered']:.0%} | {of['mean_gain']:.0%} | "
                f"{of['failed']} |"
            )
    for name, of in found["levels"].items():
        yield from ("", f"{name}, left to torch:")
        for item in of["left"][:_LINES]:
            yield f"- {item['what']}: {item['share']:.1%} of the time in {item['tasks']}: {item['why']}"
        for failure in of["failures"]:
            yield f"- not looked into: {failure['problem']}: {failure['summary']}"


def page(found: Task) -> Iterator[str]:
    """What `numbers` found, with all modules, for the documentation."""
    machine = found["machine"]
    yield "# What of KernelBench's modules falls in patterns"
    yield ""
    yield f"{machine['device']}, torch {machine['torch']}, {found['date']}, commit {found['commit'][:7]}, by"
    yield f"`{found['command']}`;"
    yield "this page by its `page`. Each module is run operator by operator ([discover](cli.md#discover)). In"
    yield "patterns: the share of that time that falls in patterns with a skeleton; could win: what is above their"
    yield "floors. Left: what takes most of the rest, and why torch keeps it."
    if found.get("note"):
        yield found["note"]
    yield ""
    yield from lines(found)
    for level in found["levels"]:
        yield from ("", f"## {level}", "", "| | time | in patterns | could win | left |", "|---|---|---|---|---|")
        yield from (_row(task) for task in found["tasks"] if task.get("level") == level and "parts" in task)


def _row(task: Task) -> str:
    left = [part for part in task["parts"] if not part.get("pattern")]
    most = max(left, key=lambda part: part["share"], default=None)
    told = f"{most['title']} {most['share']:.0%}: {most.get('why', '')}" if most and most["share"] >= 0.005 else ""
    ms = task["module_ns"] / 1e6
    return f"| {task['problem']} | {ms:.3g} ms | {task['covered']:.0%} | {task['gain']:.0%} | {told.rstrip(': ')} |"


if __name__ == "__main__":
    main()
