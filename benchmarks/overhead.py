"""What Tilewright adds: microseconds a call of a result costs on the host beyond the kernel (medians over many small
calls), and seconds from the start of `tilewright optimize` to its first verdict.

    python benchmarks/overhead.py [cuda|cpu] [--calls] [--json FILE]

`bare` is the compiled kernel alone, its output allocated before; `run` adds the allocation (told beside: no call can do
without) and the look-up of the plan; `ModelNew` adds the dispatch on signatures. On a GPU
the queue is emptied between batches: only the host's work counts. With `--calls` nothing is optimised.

On a GPU linear layers of 512 x 512 and 512 rows are called as well, ours beside eager: fp32 (two splits and a product),
bf16 (one kernel), and a step of training, forward and backward. On both targets products of 512 x 512 are called whose
kernels are left out: what is left is what Python does to allocate, to view and to pass on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from libraries import fell_back, written
from on_h200 import DEVICE_OF

from tilewright.faces.deliver import commit
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Target, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace, trace_training
from tilewright.judge.wire.parts import Gradients
from tilewright.kernels.cuda.gemm.launch import Gemm
from tilewright.kernels.cuda.gemm.plan import Point
from tilewright.realise.compose import compose
from tilewright.run.optimize import write_candidate
from tilewright.run.workbench import found_patterns

SOURCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return x * torch.sigmoid(1.5 * x) + y
"""
LINEAR = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(512, 512)

    def forward(self, x):
        return self.inner(x)
"""
BATCH, BATCHES = 50, 60
JOBS = 6  # processes that compile a layer
EXAMPLES = Path(__file__).parent.parent / "examples" / "problems"


def host_us(call: Callable[[], Any], target: Target) -> float:
    samples = []
    for _ in range(BATCHES + 5):
        if target == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        samples.append((time.perf_counter_ns() - start) / BATCH / 1e3)
    return statistics.median(samples[5:])


def candidate(target: Target, folder: Path, x: torch.Tensor, y: torch.Tensor) -> Any:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    case = CaseFacts(inputs=(), outputs=(), work=work, graph=trace(names["Model"](), (x, y), {}))
    matched = found_patterns((case,), DEVICE_OF[target])
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    write_candidate(compose(SOURCE, (case,), matched, recipe, device=DEVICE_OF[target]), folder)
    sys.path.insert(0, str(folder))
    return importlib.import_module("model")


def bare(target: Target, x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    fused = importlib.import_module("fused_0")
    out = torch.empty_like(x)
    if target == "cpu":
        run, threads = fused._kernel._run, torch.get_num_threads()
        return lambda: run(x, y, out, threads, False)
    launch, scrap, *_ = next(iter(fused._FUSED._ready.values()))
    return lambda: launch(x, y, out, scrap)


def layers(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each is compiled when it is asked for."""
    names: dict[str, Any] = {}
    exec(LINEAR, names)
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        eager = names["Model"]().to("cuda", dtype)
        x = torch.randn(512, 512, device="cuda", dtype=dtype)
        with torch.no_grad():
            graph = trace(eager, (x,), {})
        _, ours = next(written(eager, graph, 1, folder / kind, LINEAR, jobs=JOBS))
        with torch.no_grad():
            torch.testing.assert_close(ours(x), eager(x), rtol=0.02, atol=0.02)
        if why := fell_back(ours):
            raise RuntimeError(why)
        yield f"linear {kind}", no_grad(ours, x)
        yield f"linear {kind}, eager", no_grad(eager, x)
        wanted = Gradients(outputs=(0,), inputs=(0,), parameters=tuple(n for n, _ in eager.named_parameters()))
        graph = trace_training(eager, (x,), {}, [x], wanted)
        _, trained = next(written(eager, graph, 1, folder / f"{kind}-training", LINEAR, jobs=JOBS))
        step(trained, x)()
        if why := fell_back(trained):
            raise RuntimeError(why)
        yield f"step {kind}", step(trained, x)
        yield f"step {kind}, eager", step(eager, x)


class Nothing(dict[Any, Any]):
    """Of compiled kernels, as a Gemm keeps them: each is there, and does nothing."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: Any) -> Callable[..., None]:
        return lambda *args: None


def without_kernels(device: str) -> dict[str, Callable[[], Any]]:
    a, b = torch.randn(512, 512, device=device), torch.randn(512, 512, device=device)
    small: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "cluster_m": 1}
    calls: dict[str, Callable[[], Any]] = {}
    kinds: dict[str, dict[str, Any]] = {"fp32": {"scheme": "scaled"}, "fp32 in 4": {"scheme": "scaled", "split_k": 4}}
    for name, more in (kinds | {"bf16": {}}).items():
        dtype = torch.float32 if more else torch.bfloat16
        gemm = Gemm(Point(**small, **more), "f32", compiled=Nothing())
        calls[f"no kernels: {name}"] = partial(gemm, a.to(dtype), b.to(dtype))
    return calls


def no_grad(module: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return module(x)

    return call


def step(module: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    given, upstream = x.clone().requires_grad_(), torch.ones_like(x)

    def call() -> None:
        module.zero_grad()
        given.grad = None
        module(given).backward(upstream)

    return call


def first_verdict_s(problem: Path, target: Target) -> float:
    """Seconds until the first candidate is judged, imports, tracing, building and torch.compile's work included."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tilewright", "optimize", str(problem), "--target", target, "--out", folder]
        started = time.perf_counter()
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None
        with run:
            for line in run.stderr:
                if "judged (" in line:
                    run.terminate()
                    return time.perf_counter() - started
    raise RuntimeError(f"{problem} got no verdict")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "target", nargs="?", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    x, y = (torch.randn(64, 64, device=given.target) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model = candidate(given.target, Path(folder), x, y)
        ours, eager = model.ModelNew().to(given.target), model.Model()
        torch.testing.assert_close(ours(x, y), eager(x, y))
        fused = importlib.import_module("fused_0")
        calls = {
            "bare": bare(given.target, x, y), "allocation of its output": lambda: torch.empty_like(x),
            "run": lambda: fused.run(x, y), "ModelNew": lambda: ours(x, y),
            "eager (4 operations)": lambda: eager(x, y), "eager x + y": lambda: x + y,
        }  # fmt: skip
        found: dict[str, float] = {}
        for name, call in (*calls.items(), *without_kernels(given.target).items()):
            tell(found, name, host_us(call, given.target))
        tell(found, "added by the result", found["ModelNew"] - found["bare"])
        tell(found, "added beyond the allocation", found["added by the result"] - found["allocation of its output"])
        keep(given.json, found, {}, given.target)
        with torch.enable_grad():
            for name, call in layers(Path(folder)) if given.target == "cuda" else ():
                tell(found, name, host_us(call, given.target))
                keep(given.json, found, {}, given.target)
    problems = () if given.calls else ("swiglu", "rms_norm_residual")
    verdicts = {n: first_verdict_s(EXAMPLES / f"{n}.py", given.target) for n in problems}
    for name, seconds in verdicts.items():
        print(f"{name:24} {seconds:8.1f} s to the first verdict")
    keep(given.json, found, verdicts, given.target)


def tell(found: dict[str, float], name: str, us: float) -> None:
    found[name] = us
    print(f"{name:28} {us:8.2f} us a call", flush=True)


def keep(path: Path | None, found: dict[str, float], verdicts: dict[str, float], target: Target) -> None:
    about = {"command": " ".join(sys.argv), "commit": commit(), "target": target, "torch": torch.__version__}
    if path:
        path.write_text(json.dumps(about | {"us_a_call": found, "first_verdict_s": verdicts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
