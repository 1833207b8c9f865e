"""What Tilewright adds: microseconds a call of a result costs on the host beyond the kernel (medians over many small
calls), and seconds from the start of `tilewright optimize` to its first verdict.

    python benchmarks/overhead.py [cuda|cpu] [--calls] [--json FILE]

`bare` is the compiled kernel alone, its output allocated before; `run` adds the allocation (listed by itself: no call
can do without) and the look-up of the plan; `ModelNew` adds the dispatch on signatures. On a GPU the queue is emptied
between batches, so that only the host's work counts, and linear layers of 512 x 512 and 512 rows are called as well:
fp32 (two splits and a product), bf16 (one kernel), and a step of training of each, beside eager. `no kernels`: products
of 512 x 512 whose kernels are left out, which leaves what Python does to allocate, to view and to pass on. With
`--calls` nothing is optimised.
"""

from __future__ import annotations

import argparse
import importlib
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
from results import about, write
from subjects import Task, Way, built, forward, graph_of, opened, ours, stepping
from tables import BF16, F32, SHORT, problem

from tilewright.faces.live import fallbacks
from tilewright.facts.problem import Target
from tilewright.kernels.cuda.gemm.host.kernels import KernelStore
from tilewright.kernels.cuda.gemm.host.launch import Gemm
from tilewright.kernels.cuda.gemm.host.plan import Point
from tilewright.run.optimize import write_candidate

SMALL = Task(name="small", source=problem("x * torch.sigmoid(1.5 * x) + y", {"x": (64, 64), "y": (64, 64)}))
BATCH, BATCHES, JOBS = 50, 60, 6  # JOBS: processes that compile a layer
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


def small_calls(target: Target, folder: Path) -> dict[str, Callable[[], Any]]:
    eager, (x, y) = opened(SMALL, target, folder)
    way = Way(target=target, points=1)
    ((_, _, candidate),) = ours(SMALL, graph_of(SMALL, eager, [x, y]), way)
    write_candidate(candidate, folder / "candidate")
    sys.path.insert(0, str(folder / "candidate"))
    model, fused = importlib.import_module("model"), importlib.import_module("fused_0")
    fast = model.ModelNew().to(target)
    torch.testing.assert_close(fast(x, y), eager(x, y))
    return {
        "bare": bare(target, fused, x, y), "allocation of its output": lambda: torch.empty_like(x),
        "run": lambda: fused.run(x, y), "ModelNew": lambda: fast(x, y),
        "eager (4 operations)": lambda: eager(x, y), "eager x + y": lambda: x + y,
    }  # fmt: skip


def bare(target: Target, fused: Any, x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    out = torch.empty_like(x)
    if target == "cpu":
        run, threads = fused._kernel._run, torch.get_num_threads()
        return lambda: run(x, y, out, threads, False)
    launch, scrap, *_ = next(iter(fused._FUSED._ready.values()))
    return lambda: launch(x, y, out, scrap)


def layers(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each is compiled when it is asked for."""
    for dtype, step in ((F32, False), (F32, True), (BF16, False), (BF16, True)):
        source = problem("F.linear(x, self.w, self.b)", {"x": (512, 512)}, {"w": (512, 512), "b": (512,)}, dtype=dtype)
        name = f"{'step' if step else 'linear'} {SHORT[dtype]}"
        task = Task(name=name, source=source, step=step)
        eager, inputs = opened(task, "cuda", folder / name)
        way = Way(points=1, jobs=JOBS)
        (fast,) = built(eager, list(ours(task, graph_of(task, eager, inputs), way)), way, folder / name).values()
        calls = {
            n: stepping(eager, m, inputs) if step else forward(m, inputs) for n, m in (("", fast), (", eager", eager))
        }
        torch.testing.assert_close(calls[""](), calls[", eager"](), rtol=0.02, atol=0.02)
        if why := fallbacks(fast):
            raise RuntimeError(f"{why}")
        yield from ((name + who, call) for who, call in calls.items())


class Nothing(dict[Any, Any]):
    """Compiled kernels, as a Gemm keeps them: each is there, and does nothing."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: Any) -> Callable[..., None]:
        return lambda *args: None


def without_kernels(device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    a, b = torch.randn(512, 512, device=device), torch.randn(512, 512, device=device)
    for name, dtype, more in (("fp32", torch.float32, {"scheme": "fp16x3"}), ("bf16", torch.bfloat16, {}),
                              ("fp32 in 4", torch.float32, {"scheme": "fp16x3", "split_k": 4})):  # fmt: skip
        gemm = Gemm(Point(tile_m=64, tile_n=64, cluster_m=1, **more), "f32", store=KernelStore(known=Nothing()))
        yield f"no kernels: {name}", partial(gemm, a.to(dtype), b.to(dtype))


def first_verdict_s(problem_file: Path, target: Target) -> float:
    """Seconds until the first candidate is judged, imports, tracing, building and torch.compile's work included."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "tilewright",
            "optimize",
            str(problem_file),
            "--target",
            target,
            "--out",
            folder,
        ]
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
            for line in run.stderr or ():
                if "judged (" in line:
                    run.terminate()
                    return time.perf_counter() - started
    raise RuntimeError(f"{problem_file} got no verdict")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here: Target = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("target", nargs="?", choices=["cuda", "cpu"], default=here)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    us: dict[str, float] = {}
    verdicts: dict[str, float] = {}

    def tell(name: str, value: float) -> None:
        us[name] = value
        print(f"{name:28} {value:8.2f} us a call", flush=True)
        write(given.json, about() | {"target": given.target, "us_a_call": us, "first_verdict_s": verdicts})

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name, call in (*small_calls(given.target, Path(folder)).items(), *without_kernels(given.target)):
            tell(name, host_us(call, given.target))
        tell("added by the result", us["ModelNew"] - us["bare"])
        tell("added beyond the allocation", us["added by the result"] - us["allocation of its output"])
        with torch.enable_grad():
            for name, call in layers(Path(folder)) if given.target == "cuda" else ():
                tell(name, host_us(call, given.target))
    for name in () if given.calls else ("swiglu", "rms_norm_residual"):
        verdicts[name] = first_verdict_s(EXAMPLES / f"{name}.py", given.target)
        print(f"{name:24} {verdicts[name]:8.1f} s to the first verdict")
    write(given.json, about() | {"target": given.target, "us_a_call": us, "first_verdict_s": verdicts})


if __name__ == "__main__":
    main()
