"""A step of training of linear layers in fp32: eager, torch.compile and ours, forward and backward together.

    python benchmarks/linear_training.py --devices 0,1,2,3 --json benchmarks/results/h200/linear-training.json

A process a task compiles; then they measure one at a time on a device: calls in random turns, the L2 cache flushed
before each, launches hidden. Ours is every kernel of a step at the points of one number; which number is chosen in the
first half of the rounds, times are medians of the second. `error` is relative in the norm, the largest of the result
and all gradients, against float64. No claim: the judge measures what is claimed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from libraries import DELAY_CYCLES, error, fell_back, written
from torch import Tensor, nn
from turns import sampled

from tilewright.cell import values
from tilewright.cell.step import Step, learn, tensors_of
from tilewright.cell.trace import trace_training
from tilewright.faces.deliver import commit
from tilewright.flow import training

POINTS, ROUNDS = 3, 12


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


KINDS: dict[str, type[nn.Module]] = {"linear": Linear, "mlp": Mlp}
# rows, K, columns of the (first) weight
TASKS = {
    "linear:8192:4096:4096": (8192, 4096, 4096), "linear:65536:768:768": (65536, 768, 768),
    "linear:2048:8192:8192": (2048, 8192, 8192), "mlp:16384:768:3072": (16384, 768, 3072),
    "mlp:4096:4096:14336": (4096, 4096, 14336), "mlp:2048:1024:4096": (2048, 1024, 4096),
}  # fmt: skip


def source_of(kind: str, k: int, columns: int) -> str:
    """The layer as a problem file."""
    made = Path(__file__).read_text()
    head = made[made.index("class Linear") : made.index("KINDS: dict")]
    return (
        "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor, nn\n\n\n"
        f"{head}\n\nclass Model({KINDS[kind].__name__}):\n    def __init__(self):\n"
        f"        super().__init__({k}, {columns})\n\n\ndef get_inputs():\n    return []\n"
    )


def measured(name: str, folder: Path) -> dict[str, Any]:
    training.PRODUCTS = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    kind, (rows, k, columns) = name.split(":")[0], TASKS[name]
    with torch.device("cuda"):
        eager, x = KINDS[kind](k, columns), torch.randn(rows, k, requires_grad=True)
    text = values.encode([x], [])
    gradients, like = learn(eager, text, [x], ())
    graph = trace_training(eager, (x,), {}, [x], gradients)
    inputs = [x, *(torch.randn_like(t) for t in like)]
    modules = {"eager": eager, "compile": torch.compile(eager)}
    modules |= dict(written(eager, graph, POINTS, folder, source_of(kind, k, columns)))
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
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    with open(folder.parent / f"device-{device}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        exact = KINDS[kind](k, columns).cuda().double()
        exact.load_state_dict(eager.state_dict())
        wide = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
        truth = [t.detach() for t in tensors_of(Step(exact, exact, text, wide, gradients)())]
        errors = {who: error(call(), truth) for who, call in calls.items()}
        del truth, exact, wide
        torch.cuda.empty_cache()
        samples = sampled(calls, ROUNDS, delay_cycles=DELAY_CYCLES)
    early = {who: median(times[: ROUNDS // 2]) for who, times in samples.items()}
    late = {who: median(times[ROUNDS // 2 :]) for who, times in samples.items()}
    best = min((who for who in early if who.startswith("ours")), key=early.__getitem__, default="")
    times = {who: late[who] for who in ("eager", "compile") if who in late} | ({"ours": late[best]} if best else {})
    return {"name": name, "times_ms": times, "best": best, "points_ms": early, "errors": errors, "failures": failures}


def work(name: str, folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    try:
        found = measured(name, folder / name.replace(":", "_"))
    except Exception as caught:
        found = {"name": name, "failures": {"": " ".join(repr(caught).split())[-400:]}}
    print(json.dumps(found), file=answers, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of tasks' names, between commas")
    parser.add_argument("--devices", default="0")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        work(options.task, options.folder)
        return 0
    devices = options.devices.split(",")
    names = [n for n in TASKS if any(part in n for part in options.only.split(","))]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--task", name, "--folder", folder], stdout=subprocess.PIPE, text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": devices[i % len(devices)]},
            )
            for i, name in enumerate(names)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in processes]
    records = [json.loads(line) for text in said for line in text.splitlines()]
    ratios = []
    for record in records:
        times = record.get("times_ms", {})
        if "ours" in times:
            ratios.append(times["eager"] / times["ours"])
            told = "  ".join(f"{who} {ms:.3f}" for who, ms in times.items())
            off = [record["errors"][who] for who in (record["best"], "eager")]
            print(f"{record['name']:24s} {told}  eager/ours {ratios[-1]:.2f}  error {off[0]:.1e} / {off[1]:.1e}")
        for who, why in record["failures"].items():
            print(f"    {record['name']} {who}: {why}")
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"eager / ours: geometric mean {mean:.2f} of {len(ratios)}, least {min(ratios):.2f}")
    if options.json:
        about = {
            "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
            "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        }  # fmt: skip
        options.json.write_text(json.dumps(about | {"tasks": records}, indent=1) + "\n")
    return 0 if len(ratios) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
