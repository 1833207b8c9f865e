"""SwiGLU layers in fp16: both products in one kernel, beside a pair of kernels, two of cuBLAS, and torch.compile.

    python benchmarks/gates.py --json benchmarks/results/h200/gates.json

Many rows (models' MLPs in prefill) and few (decoding). Each player is a CUDA graph of several calls on weights of their
own; players take random turns, with cold caches. The best of each kind is chosen by the first half of the samples;
times are medians of the second half. Processes compile side by side before anything is measured. No claim: the judge
measures what is claimed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from turns import sampled

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from on_h200 import cuda

from fakes.fused import load_fused
from fakes.modules import Applies
from tilewright.faces.deliver import commit
from tilewright.frontend.trace import trace
from tilewright.fusion import match

TASKS = (("qwen2.5-7b", 2048, 18944, 3584), ("llama3-8b", 4096, 14336, 4096), ("llama3-8b", 512, 14336, 4096),
         ("llama3-70b", 2048, 28672, 8192), ("gpt2-small", 8192, 3072, 768), ("llama3.2-1b", 4096, 8192, 2048),
         *(("llama3-8b", rows, 14336, 4096) for rows in (1, 4, 16, 32, 64)),
         *(("qwen2.5-7b", rows, 18944, 3584) for rows in (1, 16, 64)),
         *(("llama3-70b", rows, 28672, 8192) for rows in (1, 16)), ("llama3.2-1b", 1, 8192, 2048))  # fmt: skip
ROUNDS, HALF = 10, 5
SAMPLE_US, MOST_CALLS = 150.0, 16
COLD_BYTES = 160 << 20  # of weights that pass between two uses of one
LIMIT = 2e-3  # relative in the norm, from float64
AHEAD_CYCLES = 300_000


def layer(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def modules(sizes: tuple[int, int, int], points: int, folder: Path) -> dict[str, Any]:
    """By kind and point: the first product, the second with the gate, and both in one; the same in every process."""
    m, n, k = sizes
    shaped = tuple(torch.empty(shape, dtype=torch.float16) for shape in ((m, k), (n, k), (n, k)))
    found = match(trace(Applies(layer), shaped, {}), unsupported=cuda.unsupported, space=cuda.space).patterns
    products = sorted((p for p in found if p.kind == "product"), key=lambda p: len(p.program.operands))
    first, second = (p for p in products if len(p.program.products) == 1)
    gate = next(p for p in products if len(p.program.products) == 2)
    made: dict[str, Any] = {}
    for kind, pattern, most in (("first", first, 1), ("pair", second, 2), ("gate", gate, points)):
        for point in pattern.space.points[:most]:
            name = f"of_{m}_{n}_{k}_{len(made)}"
            made[f"{kind} {told(point)}"] = load_fused(pattern.program, folder, point, name, numbered=False)
    return made


def compiled_beside(task: tuple[tuple[int, int, int], int, str]) -> None:
    """All that a task needs, compiled and kept in its folder."""
    sizes, points, folder = task
    m, n, k = sizes

    def meta(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float16, device="meta")

    for who, module in modules(sizes, points, Path(folder)).items():
        given = {"first": (), "pair": (meta(m, n),), "gate": (meta(n, k).t(),)}[who.split(" ")[0]]
        module.run(meta(m, k), meta(n, k).t(), *given)


def players(sizes: tuple[int, int, int], points: int, folder: Path) -> dict[str, Callable[..., Any]]:
    """Each takes x, w and v."""
    named = modules(sizes, points, folder)
    bare = next(module for who, module in named.items() if who.startswith("first"))
    torch.compiler.reset()
    made: dict[str, Callable[..., Any]] = {
        "compile": torch.compile(layer, dynamic=False),
        "cublas, two products": lambda x, w, v: (F.linear(x, w), F.linear(x, v)),
    }
    for who, module in named.items():
        if who.startswith("pair"):
            made[who] = lambda x, w, v, m=module: m.run(x, v.t(), bare.run(x, w.t())[0])[0]
        if who.startswith("gate"):
            made[who] = lambda x, w, v, m=module: m.run(x, w.t(), v.t())[0]
    return made


def told(point: Any) -> str:
    knobs = dict(point)
    return " ".join(str(knobs[name]) for name in ("tile", "cluster", "schedule", "store", "sum", "split_k", "stages"))


def measured(sizes: tuple[int, int, int], points: int, folder: Path) -> dict[str, Any]:
    m, n, k = sizes
    copies = max(1, min(8, -(-COLD_BYTES // (4 * n * k))))
    torch.manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float16, device="cuda")

    x, weights = rand(m, k), [(rand(n, k) * k**-0.5, rand(n, k) * k**-0.5) for _ in range(copies)]
    rows = x[:256]
    truth = layer(rows.double(), *(w.double() for w in weights[0]))
    floor_us = max(4 * n * k / 4.2e6, 4.0 * m * n * k / 7.8e8)
    calls = max(1, min(MOST_CALLS, round(SAMPLE_US / floor_us)))
    graphs, failures = {}, {}
    for who, call in players(sizes, points, folder).items():
        try:
            made = call(x, *weights[0])
            if isinstance(made, Tensor):
                error = float((made[:256].double() - truth).norm() / truth.norm())
                assert error < LIMIT, f"wrong: {error:.2g}"
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(max(calls, copies)):
                    call(x, *weights[i % copies])
            graphs[who] = graph.replay
        except Exception as error:  # a table with a hole is worth more than none
            failures[who] = " ".join(repr(error).split())[-300:]
    samples = {w: [ms * 1e3 / max(calls, copies) for ms in ts] for w, ts in
               sampled(graphs, ROUNDS, delay_cycles=AHEAD_CYCLES).items()}  # fmt: skip
    early = {who: median(ts[:HALF]) for who, ts in samples.items()}
    late = {who: median(ts[HALF:]) for who, ts in samples.items()}
    chosen = {kind: min((w for w in early if w.startswith(kind)), key=early.__getitem__, default="")
              for kind in ("compile", "cublas", "pair", "gate")}  # fmt: skip
    return {"us": {kind: late[who] for kind, who in chosen.items() if who}, "chosen": chosen, "points_us": late,
            "floor_us": floor_us, "failures": failures}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=4, help="of the gate, the first so many")
    parser.add_argument(
        "--rows", type=int, nargs=2, default=(1, 1 << 20), help="tasks of so many at least, and at most"
    )
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--seconds", type=float, default=600.0, help="no task begins later")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    about = {"command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
             "device": torch.cuda.get_device_name(), "torch": torch.__version__}  # fmt: skip
    records: list[dict[str, Any]] = []
    begin = time.monotonic()
    tasks = [(name, (m, n, k)) for name, m, n, k in TASKS if given.rows[0] <= m <= given.rows[1]]
    with tempfile.TemporaryDirectory() as folder:
        with get_context("spawn").Pool(given.jobs) as pool:
            pool.map(compiled_beside, [(sizes, given.points, folder) for _, sizes in tasks], chunksize=1)
        for name, sizes in tasks:
            if time.monotonic() > begin + given.seconds:
                break
            m, n, k = sizes
            records.append({"name": name, "m": m, "n": n, "k": k} | measured(sizes, given.points, Path(folder)))
            show(records[-1])
            torch.cuda.empty_cache()
            if given.json:
                given.json.write_text(json.dumps(about | {"tasks": records}, indent=1) + "\n")
    return 0


def show(record: dict[str, Any]) -> None:
    us = record["us"]
    ratio = us["compile"] / us["gate"] if {"compile", "gate"} <= us.keys() else 0.0
    print(record["name"], record["m"], record["n"], record["k"], {who: round(t, 1) for who, t in us.items()},
          record["chosen"]["gate"], f"torch.compile's time over ours {ratio:.3f}", record["failures"] or "",
          flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
