"""One harness for all comparisons: tables of tasks, every subject of a task in random turns, one result file.

    python benchmarks/harness.py TABLE|FOLDER... [--only WORDS] [--devices 0,1] [--json FILE]
    python benchmarks/harness.py TABLE --write FOLDER      # its tasks as problem files, to be judged or tuned
    python benchmarks/harness.py --show FILE...            # results as Markdown

TABLE is one of `tables.py` (`--list` prints them), FOLDER holds problem files. Some processes trace and compile side by
side; one at a time measures on a device. A task that hangs or breaks is named, and the others go on. Results that FILE
holds of the same commit are kept. With `--at "split_k=1,2,4 stages=auto,4"` products are measured at each of these
settings. Nothing here is a claim: the judge measures what is claimed (`tilewright bench`).
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from multiprocessing.connection import wait
from pathlib import Path
from queue import Queue
from statistics import geometric_mean
from typing import Any

from results import about, write

Record = dict[str, Any]


# ---- processes that answer lines


class Child:
    """A process that answers each line of its standard input with one; it begins anew after it hung or broke."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self._command, self._environment = command, os.environ | environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, line: str, limit_s: float) -> str | None:
        """What it answers; "" where it broke off, None where time was up."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, env=self._environment, stdin=pipe, stdout=pipe, text=True,
                                             start_new_session=True)  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline() if wait([self._process.stdout.fileno()], limit_s) else None
        except OSError:
            answer = ""
        if not answer:
            self.end()
        return answer.rstrip("\n") if answer else answer

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def answering(answer: Callable[[str], str]) -> None:
    """A child's side: a line for each line of its standard input; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(answer(line), file=answers, flush=True)


def spread(
    lines: Sequence[str], children: Sequence[Child], *, limit_s: float, ends: float
) -> Iterator[tuple[int, str | None]]:
    """(number of the line, answer) as they come, each asked of a child that is free; none is asked after `ends`."""
    free: Queue[Child] = Queue()
    answers: Queue[tuple[int, str | None]] = Queue()
    for child in children:
        free.put(child)

    def one(number: int) -> None:
        child = free.get()
        try:
            left = min(limit_s, ends - time.monotonic())
            answers.put((number, child.ask(lines[number], left) if left > 0 else None))
        finally:
            free.put(child)

    with ThreadPoolExecutor(len(children)) as pool:
        for number in range(len(lines)):
            pool.submit(one, number)
        for _ in lines:
            yield answers.get()
    for child in children:
        child.end()


def serve() -> None:
    from subjects import Task, Way, measured

    def answer(line: str) -> str:
        asked = json.loads(line)
        task, way = Task(**asked["task"]), Way(**asked["way"] | {"without": tuple(asked["way"]["without"])})
        try:
            found = measured(task, way)
        except Exception as error:  # of whatever kind, it is this task's alone
            found = {"name": task.name, "failures": {"": " ".join(repr(error).split())[-300:]}}
        return json.dumps(found)

    answering(answer)


# ---- what is measured, and what came of it


def chosen(asked: argparse.Namespace) -> list[Any]:
    """Tasks of the tables and folders, whose names hold one of the words."""
    from subjects import Task
    from tables import tasks

    found = []
    for place in asked.tables:
        files = sorted(Path(place).glob("*.py"), key=lambda f: (int(re.match(r"\d*", f.name)[0] or 0), f.name))  # type: ignore[index]
        found += [Task(name=f.stem, source=f.read_text()) for f in files] if files else [*tasks([place])]
    words = [word for word in asked.only.split(";") if word] or [""]
    return [replace(t, step=t.step or asked.step) for t in found if any(word in t.name for word in words)]


def kept(path: Path | None, head: Mapping[str, Any], *, whole: str = "us") -> list[Record]:
    """Results of an earlier run of the same commit: of each task that has the entry `whole`."""
    if path is None or not path.exists():
        return []
    old = json.loads(path.read_text())
    same = all(old.get(key) == head[key] for key in ("commit", "torch"))
    return [task for task in old["tasks"] if whole in task] if same else []


def run(asked: argparse.Namespace) -> list[Record]:
    from subjects import Way

    way = Way(
        target=asked.target,
        points=asked.points,
        rounds=asked.rounds,
        at=asked.at,
        without=tuple(asked.without.split(",")),
    )
    head = about()
    records = kept(asked.json, head)
    done = {record["name"] for record in records}
    tasks = [task for task in chosen(asked) if task.name not in done]
    lines = [json.dumps({"task": asdict(task), "way": asdict(way)}) for task in tasks]
    devices = [device for device in asked.devices.split(",") for _ in range(min(asked.jobs, len(tasks)))]
    here = Path(__file__).resolve()
    children = [Child([sys.executable, str(here), "--serve"], CUDA_VISIBLE_DEVICES=device) for device in devices]
    ends = time.monotonic() + asked.seconds
    for number, answer in spread(lines, children, limit_s=asked.limit, ends=ends) if lines else ():
        if answer is None and time.monotonic() >= ends:
            continue
        lost = {
            "name": tasks[number].name,
            "failures": {"": "no result in time" if answer is None else "its process broke off"},
        }
        records.append(json.loads(answer) if answer else lost)
        print(shown(records[-1]), flush=True)
        write(asked.json, head | {"tasks": records})
    return records


def shown(record: Record) -> str:
    us, ratios = record.get("us", {}), record.get("ratio", {})
    cells = [f"{who} {time:.4g}" for who, time in us.items()]
    over = [f"{who} {mid:.3f} ({low:.3f}-{high:.3f})" for who, (low, mid, high) in ratios.items()]
    told = f"us: {'  '.join(cells)}; over ours: {', '.join(over)} {record.get('best', {}).get('ours', '')}"
    lines = [f"{record['name']:40s} {told}"]
    return "\n".join([*lines, *(f"    {who}: {why}" for who, why in record.get("failures", {}).items())])


def summary(records: Sequence[Record]) -> Iterator[str]:
    """Of each subject the geometric mean of its time over ours, and the least."""
    for who in dict.fromkeys(who for r in records for who in r.get("ratio", {})):
        found = sorted((r["ratio"][who][1], r["name"]) for r in records if who in r.get("ratio", {}))
        mean = geometric_mean(ratio for ratio, _ in found)
        yield f"{who} / ours: geometric mean {mean:.3f} of {len(found)}, least {found[0][0]:.3f} ({found[0][1]})"


def markdown(result: Mapping[str, Any]) -> Iterator[str]:
    """A table of a result file's tasks, and the summary."""
    records = [r for r in result["tasks"] if "us" in r]
    subjects = list(dict.fromkeys(who for r in records for who in r["us"]))
    yield f"{result['device']}, {result['date']}, {result['commit'][:7]}, `{result['command']}`; microseconds"
    yield from (
        "",
        f"| | {' | '.join(subjects)} | floor | error: ours, eager |",
        f"|---|{'---|' * (len(subjects) + 2)}",
    )
    for r in records:
        cells = [f"{r['us'][who]:.4g}" if who in r["us"] else "" for who in subjects]
        off = ", ".join(f"{r['error'][who]:.1e}" for who in ("ours", "eager") if who in r.get("error", {}))
        yield f"| {r['name']} | {' | '.join(cells)} | {r.get('floor_us', 0):.4g} | {off} |"
    yield from ("", *(f"- {line}" for line in summary(records)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE|FOLDER")
    parser.add_argument("--only", default="", help="words between semicolons; a task's name must hold one")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--devices", default="0")
    parser.add_argument("--jobs", type=int, default=6, help="processes a device that trace and compile")
    parser.add_argument("--points", type=int, default=3, help="of ours, the first so many")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--at", default="", help="settings of knobs, in the place of what is proposed")
    parser.add_argument("--without", default="", help="compile, quack, liger: left out")
    parser.add_argument("--step", action="store_true", help="steps of training of all tasks")
    parser.add_argument(
        "--limit", type=float, default=180.0, help="seconds for a task, with compilers and the wait for the device"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="for all; what has no result then has none yet")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve()
    elif asked.show:
        print("\n\n".join("\n".join(markdown(json.loads(path.read_text()))) for path in asked.show))
    elif asked.list:
        from tables import TABLES

        print(
            "\n".join(
                f"{name:13s} {sum(1 for _ in table()):4d} tasks. {table.__doc__ or ''}"
                for name, table in TABLES.items()
            )
        )
    elif asked.write:
        asked.write.mkdir(parents=True, exist_ok=True)
        for number, task in enumerate(chosen(asked), start=1):
            name = re.sub(r"\W+", "_", task.name).strip("_")
            (asked.write / (f"{name}.py" if name[0].isdigit() else f"{number}_{name}.py")).write_text(task.source)
    else:
        records = run(asked)
        print("\n".join(summary(records)))
        return 0 if records and all("us" in r for r in records) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
