"""Products of which groups of columns, columns or rows are reduced: eager, two kernels of ours, and one.

    python benchmarks/products_reduced.py --json benchmarks/results/h200/products-reduced.json
    python benchmarks/products_reduced.py --kind rows,groups --rounds 8 --json benchmarks/results/h200/whole-rows.json

Shapes are those of layers with a norm behind them, and of KernelBench's level 2; `rows` are softmax and norms of 64 to
256 columns, `groups` group norms, both in 16 bits, by K. Times in ms, medians of rounds in random turns with cold
caches, of CUDA graphs. `apart` leaves to a kernel of its own what reduces, `bare` is the product alone; points are
chosen in the first half of the rounds. `error` is relative in the norm, against float64 of a part of the rows where
what is reduced allows that. At the end, of each kind and K, `apart` over `one`: what `_WRITTEN_FROM` of
realise/gemm/renderer.py is set by. Processes compile; they measure one at a time. No claim: the judge measures
what is claimed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Queue
from statistics import geometric_mean, median
from threading import Thread
from typing import Any

import torch
import torch.nn.functional as F
from alone import graphed
from torch import Tensor
from turns import sampled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from on_h200 import GPU, cuda

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, view
from tilewright.faces.deliver import commit
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.graph import Graph, Ref
from tilewright.realise.gemm import renderer as cuda_product

ROUNDS = 16
DELAY_CYCLES = 300_000
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CHECKED = 512  # rows
DEVICE = GPU
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


def row_softmax(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.linear(x, w, b).softmax(-1)


def row_layer_norm(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b), scale.shape, scale, shift)


def row_rms_norm(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.rms_norm(F.linear(x, w, b), scale.shape, scale, 1e-6)


def whole_softmax(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)).softmax(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """(M, N, K) of a product and what is done with it; `whole`: what is reduced needs all rows."""

    function: Callable[..., Any]
    sizes: tuple[int, int, int]
    dtype: str
    whole: bool = False


LAYERS: dict[str, Task] = {
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
ROWS = {
    f"{name} of {n}, K {k}": Task(function=function, sizes=(65536, n, k), dtype="bf16")
    for k in (512, 1024, 2048, 4096)
    for n in (64, 128, 256)
    for name, function in (("softmax", row_softmax), ("layer norm", row_layer_norm), ("rms norm", row_rms_norm))
}
GROUPS = {
    f"group norm of {size}, {m} rows, K {k}": Task(function=group_norm(4096 // size), sizes=(m, 4096, k), dtype="bf16")
    for k in (1024, 2048, 4096)
    for m in (4096, 16384)
    for size in (32, 64, 128, 256)
}
KINDS = {"layers": LAYERS, "rows": ROWS, "groups": GROUPS}
TASKS = LAYERS | ROWS | GROUPS


class Chain:
    """Patterns run one after the other as a candidate would, views and all."""

    def __init__(
        self, graph: Graph, function: Callable[..., Any], patterns: Sequence[Pattern], folder: Path
    ) -> None:  # fmt: skip
        self.modules = [load_fused(p.program, folder) for p in patterns]
        self.patterns, self.graph, self.function = patterns, graph, function

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

    def __call__(self, inputs: dict[str, Tensor], number: int, *, patterns: int | None = None) -> Any:
        """With the first pattern, the product, at the point of this number; the result, or of the first `patterns`
        alone none."""
        self._configure(number)
        run = GraphRun(self.graph, Applies(self.function), exact=False)
        run.values.update(inputs)
        for module, pattern in zip(self.modules[:patterns], self.patterns, strict=False):
            site = pattern.sites[0]
            given = [view(run.value(b.node), b, o.shape)
                     for b, o in zip(site.operands, pattern.program.operands, strict=True)]  # fmt: skip
            for bind, result in zip(site.outputs, module.run(*given), strict=True):
                run.values[bind.node] = view(result, bind, run.nodes[bind.node].shape)
        result = self.graph.result
        assert isinstance(result, Ref)
        return run.value(result.name) if patterns is None else None


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
    made = {}
    for name, patterns in {"apart": two, "one": one}.items():
        if patterns:
            made[name] = Chain(graph, task.function, patterns, folder / name)
            made[name].prepare(points)
    return made


def measured(name: str, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    task, points = replace(TASKS[name], dtype=asked.dtype or TASKS[name].dtype), asked.points
    m, n, k = task.sizes
    shapes = ((m, k), (n, k), (n,), (n,), (n,))
    kind = DTYPES[task.dtype]
    graph = trace(Applies(task.function), tuple(torch.empty(s, dtype=kind, device="meta") for s in shapes), {})
    made = chains(task, graph, points, folder)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time measures
        torch.manual_seed(0)
        args = tuple(
            (torch.randn(s, device="cuda") / (k**0.5 if len(s) == 2 else 1.0)).to(kind) for s in shapes
        )  # fmt: skip
        return timed(task, graph, made, args, points=points, rounds=asked.rounds)


def timed(
    task: Task, graph: Graph, made: dict[str, Chain], args: tuple[Tensor, ...], *, points: int, rounds: int
) -> dict[str, Any]:
    inputs = {n.name: t for n, t in zip((n for n in graph.nodes if n.op == "input"), args, strict=True)}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: task.function(*args)}
    ways = {name: (chain, None) for name, chain in made.items()} | {"bare": (made["apart"], 1)}
    for name, (chain, patterns) in ways.items():
        for number in range(min(points, len(chain.patterns[0].space.points))):
            calls[f"{name}:{number}"] = partial(chain, inputs, number, patterns=patterns)
    rows = None if task.whole else CHECKED
    truth = task.function(args[0][:rows].double(), *(a.double() for a in args[1:]))
    errors = {name: error(call(), truth, rows) for name, call in calls.items() if not name.startswith("bare")}
    del truth
    samples = sampled({name: graphed([call]) for name, call in calls.items()}, rounds, delay_cycles=DELAY_CYCLES)
    early = {n: median(s[: rounds // 2]) for n, s in samples.items()}
    late = {n: median(s[rounds // 2 :]) for n, s in samples.items()}
    kinds = {kind: [n for n in early if n.startswith(kind)] for kind in ("eager", *ways)}
    best = {kind: min(names, key=early.__getitem__) for kind, names in kinds.items()}
    return {
        "sizes": task.sizes, "dtype": task.dtype, "times_ms": {kind: late[n] for kind, n in best.items()},
        "error": {k: errors[n] for k, n in best.items() if n in errors}, "best": best, "points_ms": early,
    }  # fmt: skip


def shown(name: str, found: dict[str, Any]) -> str:
    errors = found["error"]
    cells = [f"{k} {ms:.3f} ms" + (f" ({errors[k]:.1e})" if k in errors else "") for k, ms in found["times_ms"].items()]
    return f"{name:28} {found['dtype']} {'x'.join(map(str, found['sizes']))}: {'  '.join(cells)}  {found['best']}"


def by_k(tasks: dict[str, dict[str, Any]]) -> list[str]:
    """Of each kind and K how many times as long two kernels take as one: the least, the mean and the most."""
    lines = []
    for kind in ("rows", "groups"):
        found = [t for name, t in tasks.items() if name in KINDS[kind] and "one" in t["times_ms"]]
        for k in sorted({t["sizes"][2] for t in found}):
            ratios = [t["times_ms"]["apart"] / t["times_ms"]["one"] for t in found if t["sizes"][2] == k]
            figures = min(ratios), geometric_mean(ratios), max(ratios)
            lines.append(f"{kind}, K {k}: apart over one {' '.join(f'{r:.3f}' for r in figures)} ({len(ratios)} tasks)")
    return lines


def workers(asked: argparse.Namespace, names: list[str]) -> Iterator[dict[str, Any]]:
    """What each task gave, as it comes: of processes that have every so many-th of them."""
    again = [sys.executable, __file__, "--points", str(asked.points), "--rounds", str(asked.rounds)]
    again += ["--dtype", asked.dtype] if asked.dtype else []
    jobs = min(asked.jobs, len(names))
    running = [subprocess.Popen([*again, "--worker", ";".join(names[i::jobs])], stdout=subprocess.PIPE, text=True)
               for i in range(jobs)]  # fmt: skip
    lines: Queue[str | None] = Queue()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        if process.wait():
            print(f"a worker left with {process.returncode}", flush=True)
        lines.put(None)

    for process in running:
        Thread(target=read, args=(process,), daemon=True).start()
    while jobs:
        line = lines.get()
        jobs -= line is None
        if line is not None and line.startswith("{"):
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kind", default="layers", help=f"of {', '.join(KINDS)}, between commas")
    parser.add_argument("--only", default="", help="names of tasks, between semicolons")
    parser.add_argument("--dtype", default="", choices=("", *DTYPES), help="instead of the tasks' own")
    parser.add_argument("--points", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile")
    parser.add_argument("--worker", default="", help="for the script itself: tasks, whose results are printed")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    if asked.worker:
        with tempfile.TemporaryDirectory() as folder:
            for name in asked.worker.split(";"):
                try:
                    print(json.dumps({name: measured(name, asked, Path(folder))}), flush=True)
                except Exception:  # the other tasks are measured all the same
                    traceback.print_exc()
        return
    told: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), "commit": commit(), "device": torch.cuda.get_device_name(),
        "torch": torch.__version__, "tasks": {},
    }  # fmt: skip
    names = asked.only.split(";") if asked.only else [n for kind in asked.kind.split(",") for n in KINDS[kind]]
    for found in workers(asked, names):
        told["tasks"] |= found
        for name, task in found.items():
            print(shown(name, task), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(told, indent=1) + "\n")
    print("\n".join(by_k(told["tasks"])))


if __name__ == "__main__":
    main()
