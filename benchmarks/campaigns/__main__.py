"""Campaigns on a cluster of Ray that is simulated on this machine, with its parts killed in between.

    python -m benchmarks.campaigns [--tasks 40] [--workers 1,2,4,8] [--json FILE]

`audited`: so many small problems for the CPU over two nodes of Ray (`tilewright audit`); a worker, a node and the head
are killed in turn, and the command is given again where it ends. Both nodes share this machine's processors and measure
in turns under its one lease, so its time says nothing of a real cluster's. `slept`: the same deaths, tasks that
sleep, against the ideal: the seconds slept over the workers. `throughput`: tasks that sleep, by number of workers. What
sleeps is honest for the engine's own overhead alone: none of these tasks builds, measures or judges anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tilewright.edges.sandbox.processes import children
from tilewright.facts.errors import Pending
from tilewright.run.campaign import Campaign
from tilewright.run.cluster.dispatch import Dispatch
from tilewright.run.cluster.ray_engine import RayEngine

from ..results import about, write

ROOT = Path(__file__).parents[2]
OUT = ROOT / "benchmarks" / "results" / "cpu" / "campaigns.json"
FLAGS = ("--target", "cpu", "--budget", "1s")
SLEEP_S, LONG_S = 2.0, 12.0
SLEEPER = "from benchmarks.campaigns.seats import ray_main; raise SystemExit(ray_main())"
PROBLEM = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x * {number}.5) * x + {number}


def get_inputs():
    return [torch.randn(128, 256)]


def get_init_inputs():
    return []
"""


# ---- a cluster of processes of this machine


class Simulated:
    """A head that lends nothing but itself, and nodes; each with processes of its own."""

    def __init__(self, nodes: int) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(nodes - 1)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill_node(self) -> None:
        """And another comes."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))

    def kill_head(self) -> None:
        assert self.cluster.head_node is not None
        self.cluster.head_node.kill_gcs_server(check_alive=False)

    def kill_worker(self) -> None:
        """An actor's process: a child of a node's raylet."""
        nodes = [info.process.pid for n in self.cluster.list_all_nodes() for info in n.all_processes["raylet"]]
        actors = [
            pid for node in nodes for pid in children(node) if b"Actor" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(actors[-1], signal.SIGKILL)

    def close(self) -> None:
        self.cluster.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def simulated(nodes: int) -> Iterator[Simulated]:
    found = Simulated(nodes)
    try:
        yield found
    finally:
        found.close()


Killing = tuple[float, str, Callable[[], None]]  # after which share of the tasks, what, and how


def killings(cluster: Simulated) -> list[Killing]:
    return [
        (0.2, "a worker", cluster.kill_worker),
        (0.45, "a node", cluster.kill_node),
        (0.7, "the head", cluster.kill_head),
    ]


def done(lines: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in lines.read_text().splitlines() if line.endswith("}")]
    except FileNotFoundError:
        return []


def _verdict(line: dict[str, Any]) -> str:
    return str(line["verdict"] if isinstance(line.get("verdict"), str) else line["status"])


def verdicts(lines: Path, names: Sequence[str]) -> dict[str, Any]:
    """Tasks by how many verdicts they have, and what the verdicts are."""
    found = done(lines)
    counts = Counter(line["file"] for line in found)
    return {
        "tasks": len(names), "with one verdict": sum(counts[n] == 1 for n in names),
        "with none": sum(counts[n] == 0 for n in names), "with two": sum(counts[n] > 1 for n in names),
        "verdicts": dict(Counter(_verdict(line) for line in found)),
        "second attempts": sum(bool(line.get("attempt")) for line in found),
        "nodes": len({line["node"]["name"] for line in found if "node" in line}),
    }  # fmt: skip


# ---- tasks that are audited


def audited(count: int, folder: Path) -> dict[str, Any]:
    problems, out = folder / "problems", folder / "out"
    problems.mkdir(parents=True)
    for number in range(1, count + 1):
        (problems / f"{number}_task.py").write_text(PROBLEM.format(number=number))
    names = [f.name for f in problems.glob("*.py")]
    command = [
        sys.executable,
        "-m",
        "tilewright",
        "audit",
        str(problems),
        "--out",
        str(out),
        "--cluster",
        "ray",
        *FLAGS,
    ]
    started, calls = time.monotonic(), 0
    deaths: list[dict[str, Any]] = []
    codes: list[int] = []
    todo: list[Killing] | None = None
    while calls < 4 and (not codes or codes[-1] == 75):
        calls += 1
        with simulated(2) as cluster:
            todo = killings(cluster) if todo is None else []
            environment = os.environ | {"RAY_ADDRESS": cluster.address}
            with (folder / "said.txt").open("ab") as said, subprocess.Popen(
                command, env=environment, stdout=said, stderr=said, cwd=ROOT
            ) as process:  # fmt: skip
                while process.poll() is None:
                    time.sleep(0.2)
                    finished = len(done(out / "results.jsonl"))
                    if todo and finished >= todo[0][0] * count:
                        _, what, kill = todo.pop(0)
                        kill()
                        deaths.append({"killed": what, "after": finished})
            codes.append(process.returncode)
    wall_s = time.monotonic() - started
    busy_s = sum(line.get("wall_s", 0.0) for line in done(out / "results.jsonl"))
    lost = (folder / "said.txt").read_text(errors="replace").count("once more elsewhere")
    return verdicts(out / "results.jsonl", names) | {
        "lost attempts": lost,
        "killed": deaths, "commands": calls, "exit codes": codes, "wall_s": wall_s, "busy_s": busy_s,
        "over busy seconds by two nodes": wall_s / (busy_s / 2),
    }  # fmt: skip


# ---- tasks that sleep


def slept(count: int, nodes: int, folder: Path, *, sleep_s: float, kill: bool) -> dict[str, Any]:
    """One campaign; its wall time from the start of the first task to the last verdict (where the head was killed: of
    each command, until it ended), over the ideal."""
    files = [folder / "problems" / f"{number}_sleep.py" for number in range(1, count + 1)]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.write_text("")
    campaign = Campaign(
        files=tuple(files), out=folder / "out", target="cpu", budget_s=sleep_s, settings=(), jobs=1, devices=(),
        stamp="slept",
    )  # fmt: skip
    campaign.out.mkdir()
    lines = campaign.out / "results.jsonl"
    deaths: list[str] = []
    wall_s, calls, lost = 0.0, 0, 0
    todo: list[Killing] | None = None
    while calls < 4 and len(done(lines)) < count:
        calls += 1
        begun: list[float] = []
        with simulated(nodes) as cluster:
            todo = killings(cluster) if kill and todo is None else []

            def watch(progress: Any, todo: list[Killing] = todo) -> None:
                if todo and progress.done >= todo[0][0] * count:
                    _, what, how = todo.pop(0)
                    how()
                    deaths.append(what)

            engine = RayEngine(
                cluster.address, target="cpu", jobs=1, log=folder / "ray.log", program=SLEEPER, silence_s=10.0
            )  # fmt: skip
            dispatch = Dispatch(engine=engine, lines=lines, say=lambda text: None, watch=watch)
            before = {line["file"] for line in done(lines)}

            def seen(task: Any, begun: list[float] = begun, before: set[str] = before) -> None:
                if task["file"] not in before:
                    begun.append(time.monotonic() - task.get("wall_s", 0.0))

            with suppress(Pending), engine:
                dispatch.run(campaign, seen=seen)
            wall_s += time.monotonic() - begun[0]
            lost += dispatch.progress().lost
    ideal_s = count * sleep_s / nodes
    found = verdicts(lines, [f.name for f in files])
    return {"workers": nodes, **found, "slept_s": sleep_s, "killed": deaths, "lost attempts": lost,
            "commands": calls, "wall_s": wall_s, "ideal_s": ideal_s,
            "over ideal": wall_s / ideal_s, "tasks a second": count / wall_s}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--only", default="audited,slept,throughput")
    parser.add_argument("--json", type=Path, default=OUT)
    given = parser.parse_args()
    os.environ |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "RAY_USAGE_STATS_ENABLED": "0"}
    result: dict[str, Any] = {"what": "campaigns on a simulated cluster of Ray, parts of it killed"}
    result |= about(shlex.join(["python", "-m", "benchmarks.campaigns", *sys.argv[1:]]))
    if given.json.exists():  # what is not asked for anew is kept
        result = json.loads(given.json.read_text()) | result
    with tempfile.TemporaryDirectory(prefix="campaigns-") as folder:
        place = Path(folder)
        if "throughput" in given.only:
            numbers = [int(n) for n in given.workers.split(",")]
            result["throughput"] = [slept(10 * n, n, place / f"n{n}", sleep_s=SLEEP_S, kill=False) for n in numbers]
            write(given.json, result)
        if "slept" in given.only:
            result["slept"] = [
                slept(given.tasks, 2, place / "calm", sleep_s=LONG_S, kill=False),
                slept(given.tasks, 2, place / "killed", sleep_s=LONG_S, kill=True),
            ]
            write(given.json, result)
        if "audited" in given.only:
            result["audited"] = audited(given.tasks, place / "audited")
            write(given.json, result)
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
