"""Products of which groups of columns, columns or rows are reduced: eager, two kernels of ours, and one.

    python benchmarks/products_reduced.py --json benchmarks/results/h200/products-reduced.json

Shapes are those of layers with a norm behind them, and of KernelBench's level 2; times in ms, medians of rounds in
random turns with cold caches, launches hidden. `apart` leaves to a kernel of its own what reduces, `bare` is the
product alone; points are chosen in the first half of the rounds. `error` is relative in the norm, against float64 of
a part of the rows where what is reduced allows that. A process a task compiles; they measure one at a time. No claim:
the judge measures what is claimed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from turns import sampled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, view
from tilewright.cell.trace import trace
from tilewright.faces.deliver import commit
from tilewright.facts.graph import Graph, Ref
from tilewright.facts.pattern import Pattern
from tilewright.kernels.cuda.plan import Device
from tilewright.stages.patterns import match
from tilewright.stages.propose import cuda, cuda_product

ROUNDS = 16
DELAY_CYCLES = 3_000_000
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CHECKED = 512  # rows
DEVICE = Device(processors=132, arch="sm_90a")
cuda_product.unhidden = lambda program: None  # what is not proposed is measured all the same
LOCK = Path(tempfile.gettempdir()) / "products_reduced.lock"


def swish_group_norm(groups: int) -> Callable[..., Tensor]:
    def forward(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = F.linear(x, w, b)
        return F.group_norm(torch.sigmoid(y) * y + b, groups, scale, shift)

    return forward


def group_norm(groups: int) -> Callable[..., Tensor]:
    def forward(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.leaky_relu(F.group_norm(F.linear(x, w, b), groups, scale, shift))

    return forward


def heads(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Norms of heads of 128, as those of queries and keys."""
    y = F.linear(x, w).unflatten(1, (-1, 128))
    return F.rms_norm(y, (128,), scale[:128], 1e-6).flatten(1)


def pooled(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b).unflatten(1, (-1, 16)).mean(2)) * 2


def batch_norm(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    y = F.batch_norm(F.linear(x, w, b), None, None, scale, shift, training=True)
    return torch.sigmoid(y) * y


def whole_softmax(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)).softmax(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """(M, N, K) of a product and what is done with it; `whole`: what is reduced needs all rows."""

    function: Callable[..., Any]
    sizes: tuple[int, int, int]
    dtype: str
    whole: bool = False


TASKS: dict[str, Task] = {
    "swish, group norm of 64": Task(function=swish_group_norm(64), sizes=(32768, 4096, 1024), dtype="f32"),
    "group norm of 16": Task(function=group_norm(512), sizes=(1024, 8192, 8192), dtype="f32"),
    "group norm of 32": Task(function=group_norm(256), sizes=(1024, 8192, 8192), dtype="f32"),
    "means of 16": Task(function=pooled, sizes=(1024, 8192, 8192), dtype="f32"),
    "batch norm, 1024 rows": Task(function=batch_norm, sizes=(1024, 8192, 8192), dtype="f32", whole=True),
    "batch norm, 16384 rows": Task(function=batch_norm, sizes=(16384, 4096, 4096), dtype="f32", whole=True),
    "softmax": Task(function=whole_softmax, sizes=(1024, 8192, 8192), dtype="f32"),
    "heads' norms": Task(function=heads, sizes=(8192, 4096, 4096), dtype="bf16"),
    "heads' norms, short K": Task(function=heads, sizes=(8192, 4096, 1024), dtype="bf16"),
    "group norm of 64, bf16": Task(function=group_norm(64), sizes=(32768, 4096, 1024), dtype="bf16"),
}


class Chain:
    """Patterns run one after the other as a candidate would, views and all."""

    def __init__(self, graph: Graph, function: Callable[..., Any], patterns: Sequence[Pattern], folder: Path, *,
                 whole: bool) -> None:  # fmt: skip
        self.modules = [load_fused(p.program, folder) for p in patterns]
        self.patterns, self.graph, self.function, self.whole = patterns, graph, function, whole

    def prepare(self, points: int) -> None:
        """Compile at the first points of the product, and at the first of the others."""
        for number in range(points):
            self._configure(number)
            self.modules[0]._FUSED.prepare(DEVICE)
        for module in self.modules[1:]:
            module._FUSED.prepare(DEVICE)

    def _configure(self, number: int) -> None:
        points = self.patterns[0].space.points
        self.modules[0].configure(**dict(points[min(number, len(points) - 1)]))

    def __call__(self, inputs: dict[str, Tensor], number: int) -> Any:
        """With the first pattern, the product, at the point of this number."""
        self._configure(number)
        run = GraphRun(self.graph, Applies(self.function), exact=False)
        run.values.update(inputs)
        for module, pattern in zip(self.modules, self.patterns, strict=True):
            site = pattern.sites[0]
            given = [view(run.value(b.node), b, o.shape)
                     for b, o in zip(site.operands, pattern.program.operands, strict=True)]  # fmt: skip
            for bind, result in zip(site.outputs, module.run(*given), strict=True):
                run.values[bind.node] = view(result, bind, run.nodes[bind.node].shape)
        result = self.graph.result
        assert isinstance(result, Ref)
        return run.value(result.name) if self.whole else None


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for v in value for t in tensors(v)]


def error(found: Any, truth: Any, rows: int | None) -> float:
    pairs = zip(tensors(found), tensors(truth), strict=True)
    return max(float((a[:rows].double() - b).norm() / b.norm()) for a, b in pairs)


def chains(task: Task, graph: Graph, points: int, folder: Path) -> dict[str, Chain]:
    """By what they leave to others; compiled."""
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space).patterns
    one = [p for p in matched if p.kind == "product" and p.sites[0].spared]
    two = sorted((p for p in matched if p not in one), key=lambda p: p.kind != "product")
    parts = {"bare": [p for p in two if p.kind == "product"], "apart": two, "one": one}
    made = {}
    for name, patterns in parts.items():
        if patterns:
            made[name] = Chain(graph, task.function, patterns, folder / name, whole=name != "bare")
            made[name].prepare(points)
    return made


def measured(name: str, points: int, rounds: int) -> dict[str, Any]:
    task = TASKS[name]
    m, n, k = task.sizes
    shapes = ((m, k), (n, k), (n,), (n,), (n,))
    dtype = DTYPES[task.dtype]
    graph = trace(Applies(task.function), tuple(torch.empty(s, dtype=dtype, device="meta") for s in shapes), {})
    with tempfile.TemporaryDirectory() as folder, open(LOCK, "w") as lock:
        made = chains(task, graph, points, Path(folder))
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time measures
        torch.manual_seed(0)
        args = tuple(
            (torch.randn(s, device="cuda") / (k**0.5 if len(s) == 2 else 1.0)).to(dtype) for s in shapes
        )  # fmt: skip
        return timed(task, graph, made, args, points=points, rounds=rounds)


def timed(
    task: Task, graph: Graph, made: dict[str, Chain], args: tuple[Tensor, ...], *, points: int, rounds: int
) -> dict[str, Any]:
    inputs = {n.name: t for n, t in zip((n for n in graph.nodes if n.op == "input"), args, strict=True)}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: task.function(*args)}
    for name, chain in made.items():
        for number in range(points):
            calls[f"{name}:{number}"] = lambda chain=chain, number=number: chain(inputs, number)  # type: ignore[misc]
    rows = None if task.whole else CHECKED
    truth = task.function(args[0][:rows].double(), *(a.double() for a in args[1:]))
    errors = {name: error(call(), truth, rows) for name, call in calls.items() if not name.startswith("bare")}
    del truth
    samples = sampled(calls, rounds, delay_cycles=DELAY_CYCLES)
    early = {n: median(s[: rounds // 2]) for n, s in samples.items()}
    late = {n: median(s[rounds // 2 :]) for n, s in samples.items()}
    kinds = {kind: [n for n in early if n.startswith(kind)] for kind in ("eager", *made)}
    best = {kind: min(names, key=early.__getitem__) for kind, names in kinds.items()}
    return {
        "sizes": task.sizes, "dtype": task.dtype, "times_ms": {kind: late[n] for kind, n in best.items()},
        "error": {k: errors[n] for k, n in best.items() if n in errors}, "best": best, "points_ms": early,
    }  # fmt: skip


def shown(name: str, found: dict[str, Any]) -> str:
    errors = found["error"]
    cells = [f"{k} {ms:.3f} ms" + (f" ({errors[k]:.1e})" if k in errors else "") for k, ms in found["times_ms"].items()]
    return f"{name:28} {found['dtype']} {'x'.join(map(str, found['sizes']))}: {'  '.join(cells)}  {found['best']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="names of tasks, between semicolons")
    parser.add_argument("--points", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--worker", default="", help="for the script itself: one task, whose result is printed")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    if asked.worker:
        print(json.dumps(measured(asked.worker, asked.points, asked.rounds)), flush=True)
        return
    told: dict[str, Any] = {
        "command": "python benchmarks/products_reduced.py" + (f' --only "{asked.only}"' if asked.only else ""),
        "commit": commit(), "device": torch.cuda.get_device_name(), "torch": torch.__version__, "tasks": {},
    }  # fmt: skip
    again = [sys.executable, __file__, "--points", str(asked.points), "--rounds", str(asked.rounds), "--worker"]
    names = asked.only.split(";") if asked.only else list(TASKS)
    running = {name: subprocess.Popen([*again, name], stdout=subprocess.PIPE, text=True) for name in names}
    while running:
        done = [name for name, process in running.items() if process.poll() is not None]
        for name in done:
            process = running.pop(name)
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            if process.returncode or not lines:
                print(f"{name}: exit {process.returncode}", flush=True)
                continue
            told["tasks"][name] = json.loads(lines[-1])
            print(shown(name, told["tasks"][name]), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(told, indent=1) + "\n")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
