"""Layers of few rows whose weights have eight bits an element: one kernel of ours, beside torch.compile, eager, and the
same layer with weights of 16 bits.

    python benchmarks/unpacked.py --json benchmarks/results/h200/unpacked.json

Each player is a CUDA graph of several calls on weights of their own, so that caches are cold; players take random
turns. The best of our points is chosen by the first half of the samples; times are medians of the second half, ratios
have the quartiles of the rounds. The floor: every byte once, at 4.2 TB/s. A process a task compiles; they measure one
at a time. No claim: the judge measures what is claimed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from turns import sampled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import view
from tilewright.cell.trace import trace
from tilewright.faces.deliver import commit
from tilewright.facts.pattern import Pattern
from tilewright.kernels.cuda.plan import Device
from tilewright.stages.patterns import match
from tilewright.stages.propose import cuda

ROUNDS, HALF = 16, 8
SAMPLE_US = 200.0
COLD_BYTES = 160 << 20  # of weights that pass between two uses of one
BYTES_A_US = 4.2e6
AHEAD_CYCLES = 300_000
TOGETHER = 14
DEVICE = Device(processors=132, arch="sm_90a")
LOCK = Path(tempfile.gettempdir()) / "unpacked.lock"
LIMIT = 2.0**-7  # relative in the norm, from float64


def scaled(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype) * scale[:, None])


def behind(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * scale


def plain(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w)


KINDS = {
    "int8": (scaled, torch.int8),
    "float8": (scaled, torch.float8_e4m3fn),
    "int8, scaled behind": (behind, torch.int8),
}
SIZES = ((14336, 4096), (4096, 14336))
TASKS = {
    f"{kind} {m}x{n}x{k}": (kind, m, n, k) for kind in KINDS for m in (1, 4, 16, 32) for n, k in SIZES
}  # fmt: skip


def drawn(n: int, k: int, dtype: torch.dtype) -> Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, (n, k), dtype=dtype, device="cuda")
    return torch.randn(n, k, device="cuda").to(dtype)


def pattern_of(function: Callable[..., Any], m: int, n: int, k: int, dtype: torch.dtype) -> Pattern:
    """The product; with what makes its weights, where that is a part."""
    shaped = tuple(torch.empty(s, dtype=t, device="meta") for s, t in
                   (((m, k), torch.bfloat16), ((n, k), dtype), ((n,), torch.bfloat16)))  # fmt: skip
    found = match(trace(Applies(function), shaped, {}), unsupported=cuda.unsupported, space=cuda.space).patterns
    return max((p for p in found if p.program.product is not None), key=lambda p: len(p.sites[0].nodes))


def ours(pattern: Pattern, folder: Path, points: int) -> dict[str, Callable[..., Any]]:
    """By their knobs; compiled."""
    made: dict[str, Callable[..., Any]] = {}
    site = pattern.sites[0]
    for point in pattern.space.points[:points]:
        module = load_fused(pattern.program, folder, point)
        module._FUSED.prepare(DEVICE)

        def call(*args: Tensor, module: Any = module) -> Tensor:
            values = {f"args_{i}": a for i, a in enumerate(args)}
            binds = zip(site.operands, pattern.program.operands, strict=True)
            (made,) = module.run(*(view(values[b.node], b, o.shape) for b, o in binds))
            return made  # type: ignore[no-any-return]

        knobs = dict(point)
        made[f"{knobs['tile']} {knobs['split_k']}"] = call
    return made


def graphed(call: Callable[..., Any], x: Tensor, sets: list[tuple[Tensor, Tensor]], calls: int) -> Callable[[], None]:
    call(x, *sets[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(x, *sets[i % len(sets)])
    return graph.replay  # type: ignore[no-any-return]


def measured(name: str, points: int) -> dict[str, Any]:
    kind, m, n, k = TASKS[name]
    function, dtype = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder, open(LOCK, "w") as lock:
        torch.manual_seed(0)
        eighth = ours(pattern_of(function, m, n, k, dtype), Path(folder), points)
        half = ours(pattern_of(plain, m, n, k, torch.bfloat16), Path(folder), 2)
        x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        copies = -(-COLD_BYTES // (n * k)) + 1
        sets = [(drawn(n, k, dtype), torch.rand(n, device="cuda").bfloat16() / 64) for _ in range(copies)]
        wide = [(w.bfloat16(), s) for w, s in sets]
        compiled = torch.compile(function)
        compiled(x, *sets[0])
        players = {"eager": (function, sets), "compile": (compiled, sets), "cublas 16 bits": (plain, wide)}
        players |= {f"ours 16 bits {told}": (call, wide) for told, call in half.items()}
        players |= {f"one {told}": (call, sets) for told, call in eighth.items()}
        truth = function(x.double(), sets[0][0].double(), sets[0][1].double())
        wrong = {who: float((call(x, *given[0]).double() - truth).norm() / truth.norm())
                 for who, (call, given) in players.items() if "16 bits" not in who}  # fmt: skip
        floor_us = (n * k + 2 * m * k + 2 * m * n + 2 * n) / BYTES_A_US
        calls = max(copies, round(SAMPLE_US / floor_us))
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time measures
        graphs = {who: graphed(call, x, given, calls) for who, (call, given) in players.items()}
        samples = {w: [ms * 1e3 / calls for ms in ts] for w, ts in
                   sampled(graphs, ROUNDS, delay_cycles=AHEAD_CYCLES).items()}  # fmt: skip
        torch.cuda.synchronize()
    early, late = ({w: ts[part] for w, ts in samples.items()} for part in (slice(HALF), slice(HALF, None)))
    best = {who: min((w for w in early if w.startswith(who)), key=lambda w: median(early[w]))
            for who in ("one", "compile", "eager", "cublas 16 bits", "ours 16 bits")}  # fmt: skip
    mine = late[best["one"]]
    ratios = {who: [a / b for a, b in zip(late[w], mine, strict=True)] for who, w in best.items() if who != "one"}
    return {
        "m": m, "n": n, "k": k, "kind": kind, "best": best, "floor_us": floor_us,
        "us": {who: median(late[w]) for who, w in best.items()},
        "ratio": {who: [*quantiles(rs, n=4)] for who, rs in ratios.items()},
        "weights_gb_per_s": n * k / median(mine) / 1e3,
        "error": wrong, "points_us": {w: median(ts) for w, ts in early.items()},
    }  # fmt: skip


def shown(name: str, found: dict[str, Any]) -> str:
    cells = [f"{who} {us:.1f}" for who, us in found["us"].items()]
    ratios = [f"{who} {r[1]:.2f} ({r[0]:.2f}-{r[2]:.2f})" for who, r in found["ratio"].items()]
    wrong = max(found["error"].values())
    return (
        f"{name:34} us: {'  '.join(cells)}  floor {found['floor_us']:.1f}, {found['weights_gb_per_s']:.0f} GB/s; over "
        f"ours: {', '.join(ratios)}; best {found['best']['one']}{'' if wrong < LIMIT else f'; WRONG {wrong:.1e}'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="tasks whose names begin with one of these, between semicolons")
    parser.add_argument("--points", type=int, default=4)
    parser.add_argument("--worker", default="", help="for the script itself: one task, whose result is printed")
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(measured(asked.worker, asked.points)), flush=True)
        return 0
    about: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "tasks": {},
    }  # fmt: skip
    again = [sys.executable, __file__, "--points", str(asked.points), "--worker"]
    waiting = [name for name in TASKS if name.startswith(tuple(asked.only.split(";")))]
    running: dict[str, subprocess.Popen[str]] = {}
    failed = 0
    while waiting or running:
        while waiting and len(running) < TOGETHER:
            name = waiting.pop(0)
            running[name] = subprocess.Popen([*again, name], stdout=subprocess.PIPE, text=True)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            process = running.pop(name)
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            if process.returncode or not lines:
                failed += 1
                print(f"{name}: exit {process.returncode}", flush=True)
                continue
            about["tasks"][name] = json.loads(lines[-1])
            print(shown(name, about["tasks"][name]), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(about, indent=1) + "\n")
        time.sleep(0.2)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
