"""A step of training of linear layers in fp32: eager, torch.compile and ours, forward and backward together.

    python benchmarks/linear_training.py --devices 0,1,2,3 --json benchmarks/results/h200/linear-training.json

A process a task compiles, in several more; then they measure one at a time on a device, and tell at once what they
found: calls in random turns, the L2 cache flushed before each, launches hidden. Ours is every kernel of a step at the
points of one number; which number is chosen in the first half of the rounds, times are medians of the second. `error`
is relative in the norm, the largest of the result and all gradients, against float64; `worse` how many times as large
as eager's it is, the most over the result and the gradients. No claim: the judge measures what is claimed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from libraries import DELAY_CYCLES, error, fell_back, written
from torch import Tensor, nn
from turns import sampled

from tilewright.faces.deliver import commit
from tilewright.frontend.trace import trace_training
from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.step import Step, tensors_of
from tilewright.judge.reference_process.learn import learn
from tilewright.run import training

ROUNDS = 12


class Linear(nn.Module):
    def __init__(self, k: int, columns: int) -> None:
        super().__init__()
        self.inner = nn.Linear(k, columns)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Mlp(nn.Module):
    def __init__(self, k: int, columns: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(k, columns), nn.Linear(columns, k)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Swiglu(nn.Module):
    def __init__(self, k: int, columns: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(k, columns, bias=False), nn.Linear(k, columns, bias=False)
        self.down = nn.Linear(columns, k, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


KINDS: dict[str, type[nn.Module]] = {"linear": Linear, "mlp": Mlp, "swiglu": Swiglu}
# kind: rows (tokens of a batch), K, columns of the (first) weight: of Llama 2 and 3, GPT-2 and GPT-2 XL, BERT large
TASKS = (
    "linear:8192:4096:4096", "linear:4096:4096:14336", "mlp:16384:768:3072", "linear:16384:768:2304",
    "linear:8192:1600:4800", "mlp:8192:1600:6400", "mlp:4096:4096:14336", "linear:8192:1024:1024",
    "swiglu:2048:4096:11008", "swiglu:8192:2048:5632",
)  # fmt: skip


def source_of(kind: str, k: int, columns: int) -> str:
    """The layer as a problem file."""
    made = Path(__file__).read_text()
    head = made[made.index("class Linear") : made.index("KINDS: dict")]
    return (
        "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor, nn\n\n\n"
        f"{head}\n\nclass Model({KINDS[kind].__name__}):\n    def __init__(self):\n"
        f"        super().__init__({k}, {columns})\n\n\ndef get_inputs():\n    return []\n"
    )


def off(found: Any, truth: Sequence[Tensor]) -> list[float]:
    """Of the result and each gradient."""
    return [error([x], [t]) for x, t in zip(tensors_of(found), truth, strict=True)]


def measured(name: str, folder: Path, *, points: int, jobs: int, others: Sequence[str], lock: Path) -> dict[str, Any]:
    training.PRODUCTS = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    kind, (rows, k, columns) = name.split(":")[0], map(int, name.split(":")[1:])
    with torch.device("cuda"):
        eager, x = KINDS[kind](k, columns), torch.randn(rows, k, requires_grad=True)
    text = values.encode([x], [])
    gradients, like = learn(eager, text, [x], ())
    graph = trace_training(eager, (x,), {}, [x], gradients)
    inputs = [x, *(torch.randn_like(t) for t in like)]
    modules = {"eager": eager} | {who: torch.compile(eager) for who in others}
    modules |= dict(written(eager, graph, points, folder, source_of(kind, k, columns), jobs=jobs))
    failures, calls = {}, {}
    for who, module in modules.items():
        step = Step(eager if who == "compile" else module, module, text, inputs, gradients)

        def call(step: Step = step) -> Any:
            step.clear()
            return step()

        try:
            call()
            torch.cuda.synchronize()
            if why := fell_back(module):
                raise ValueError(why)
            calls[who] = call
        except Exception as caught:  # a table with a hole is worth more than none
            failures[who] = " ".join(repr(caught).split())[-300:]
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        exact = KINDS[kind](k, columns).cuda().double()
        exact.load_state_dict(eager.state_dict())
        wide = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
        truth = [t.detach() for t in tensors_of(Step(exact, exact, text, wide, gradients)())]
        errors = {who: off(call(), truth) for who, call in calls.items()}
        del truth, exact, wide
        torch.cuda.empty_cache()
        samples = sampled(calls, ROUNDS, delay_cycles=DELAY_CYCLES)
    early = {who: median(times[: ROUNDS // 2]) for who, times in samples.items()}
    late = {who: median(times[ROUNDS // 2 :]) for who, times in samples.items()}
    best = min((who for who in early if who.startswith("ours")), key=early.__getitem__, default="")
    times = {who: late[who] for who in ("eager", "compile") if who in late} | ({"ours": late[best]} if best else {})
    return {"name": name, "times_ms": times, "best": best, "points_ms": early, "errors": errors, "failures": failures}


def work(name: str, options: argparse.Namespace) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    try:
        found = measured(
            name, options.folder / name.replace(":", "_"), points=options.points, jobs=options.jobs,
            others=[who for who in ("compile",) if who not in options.without.split(",")],
            lock=options.lock or options.folder / f"device-{device}.lock",
        )  # fmt: skip
    except Exception as caught:
        found = {"name": name, "failures": {"": " ".join(repr(caught).split())[-400:]}}
    print(json.dumps(found), file=answers, flush=True)


def started(names: Sequence[str], devices: Sequence[str], arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What each process says, as soon as it says it."""
    said: queue.Queue[str] = queue.Queue()

    def run(name: str, device: str) -> None:
        command = [sys.executable, __file__, *arguments, "--task", name]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
        said.put(done.stdout or json.dumps({"name": name, "failures": {"": f"no answer, {done.returncode}"}}))

    for i, name in enumerate(names):
        threading.Thread(target=run, args=(name, devices[i % len(devices)]), daemon=True).start()
    for _ in names:
        yield json.loads(said.get())


def shown(record: dict[str, Any]) -> float | None:
    """Eager's time over ours, printed with the rest."""
    for who, why in record["failures"].items():
        print(f"    {record['name']} {who}: {why}", flush=True)
    times = record.get("times_ms", {})
    if "ours" not in times:
        return None
    ratio: float = times["eager"] / times["ours"]
    mine, eagers = (record["errors"][who] for who in (record["best"], "eager"))
    worse = max(a / b if b else 1.0 for a, b in zip(mine, eagers, strict=True))
    told = "  ".join(f"{who} {ms:.3f}" for who, ms in times.items())
    print(f"{record['name']:24s} {told}  eager/ours {ratio:.2f}  error {max(mine):.1e} / {max(eagers):.1e}, "
          f"worse {worse:.2f}", flush=True)  # fmt: skip
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of tasks' names, between commas")
    parser.add_argument("--devices", default="0")
    parser.add_argument("--points", type=int, default=3, help="of each kernel, the first so many")
    parser.add_argument("--jobs", type=int, default=4, help="processes of a task that compile")
    parser.add_argument("--without", default="", help="compile: torch.compile is left out")
    parser.add_argument("--lock", type=Path, help="a file that whoever measures on the device holds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        work(options.task, options)
        return 0
    names = [n for n in TASKS if any(part in n for part in options.only.split(","))]
    about = {
        "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
    }  # fmt: skip
    records, ratios = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for record in started(names, options.devices.split(","), [*sys.argv[1:], "--folder", folder]):
            records.append(record)
            if (ratio := shown(record)) is not None:
                ratios.append(ratio)
            if options.json:
                options.json.write_text(json.dumps(about | {"tasks": records}, indent=1) + "\n")
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"eager / ours: geometric mean {mean:.2f} of {len(ratios)}, least {min(ratios):.2f}")
    return 0 if len(ratios) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
