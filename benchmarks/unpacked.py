"""Layers of few rows whose weights have eight bits an element: one kernel of ours, beside torch.compile, eager, and the
same layer with weights of 16 bits.

    python benchmarks/unpacked.py --json benchmarks/results/h200/unpacked.json

Each player is a CUDA graph of several calls on weights of their own, so that caches are cold; players take random
turns. The best of our points is chosen by the first half of the samples; times are medians of the second half, ratios
have the quartiles of the rounds. The floor: every byte once, at 4.2 TB/s. A process a task compiles; they measure one
at a time. No claim: the judge measures what is claimed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from alone import alone, command_of, graphed, told
from torch import Tensor
from turns import sampled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from on_h200 import GPU, cuda

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import view
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match

ROUNDS = 16
GROUP = 128  # of K
SAMPLE_US = 200.0
COLD_BYTES = 160 << 20  # of weights that pass between two uses of one
BYTES_A_US = 4.2e6
AHEAD_CYCLES = 300_000
DEVICE = GPU


def scaled(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype) * scale[:, None])


def behind(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * scale


def in_groups(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    made = w.unflatten(1, (-1, GROUP)).to(x.dtype) * scale[:, :, None]
    return F.linear(x, made.flatten(1))


def plain(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w)


KINDS = {
    "int8": (scaled, torch.int8),
    "float8": (scaled, torch.float8_e4m3fn),
    "int8, scaled behind": (behind, torch.int8),
    "int8, groups of 128": (in_groups, torch.int8),
}
SIZES = ((14336, 4096), (4096, 14336))
TASKS = {f"{kind} {m}x{n}x{k}": (kind, m, n, k) for kind in KINDS for m in (1, 4, 16, 32) for n, k in SIZES}


def drawn(n: int, k: int, dtype: torch.dtype) -> Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, (n, k), dtype=dtype, device="cuda")
    return torch.randn(n, k, device="cuda").to(dtype)


def scales(function: Callable[..., Any], n: int, k: int) -> tuple[int, ...]:
    """The shape of a layer's."""
    return (n, k // GROUP) if function is in_groups else (n,)


def pattern_of(function: Callable[..., Any], m: int, n: int, k: int, dtype: torch.dtype) -> Pattern:
    """The product; with what makes its weights, where that is a part."""
    shaped = tuple(torch.empty(s, dtype=t, device="meta") for s, t in
                   (((m, k), torch.bfloat16), ((n, k), dtype), (scales(function, n, k), torch.bfloat16)))  # fmt: skip
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


def measured(name: str, points: int) -> dict[str, Any]:
    kind, m, n, k = TASKS[name]
    function, dtype = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        eighth = ours(pattern_of(function, m, n, k, dtype), Path(folder), points)
        half = ours(pattern_of(plain, m, n, k, torch.bfloat16), Path(folder), 2)
        x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        copies = -(-COLD_BYTES // (n * k)) + 1
        sets = [
            (drawn(n, k, dtype), torch.rand(scales(function, n, k), device="cuda").bfloat16() / 64)
            for _ in range(copies)
        ]
        wide = [(w.bfloat16(), s) for w, s in sets]
        compiled = torch.compile(function)
        compiled(x, *sets[0])
        players = {"eager": (function, sets), "compile": (compiled, sets), "cublas 16 bits": (plain, wide)}
        players |= {f"ours 16 bits {point}": (call, wide) for point, call in half.items()}
        players |= {f"one {point}": (call, sets) for point, call in eighth.items()}
        floor_us = (n * k + 2 * m * k + 2 * m * n + 2 * n) / BYTES_A_US
        count = max(copies, round(SAMPLE_US / floor_us))
        with alone():
            truth = function(x.double(), sets[0][0].double(), sets[0][1].double())
            wrong = {who: float((call(x, *given[0]).double() - truth).norm() / truth.norm())
                     for who, (call, given) in players.items() if "16 bits" not in who}  # fmt: skip
            graphs = {who: graphed([partial(call, x, *given[i % copies]) for i in range(count)])
                      for who, (call, given) in players.items()}  # fmt: skip
            samples = sampled(graphs, ROUNDS, delay_cycles=AHEAD_CYCLES)
    kinds = ("one", "compile", "eager", "cublas 16 bits", "ours 16 bits")
    found = told({who: [1e3 * ms / count for ms in ts] for who, ts in samples.items()}, kinds)
    return found | {
        "m": m, "n": n, "k": k, "kind": kind, "floor_us": floor_us,
        "weights_gb_per_s": n * k / found["us"]["one"] / 1e3,
        "off": {kind: wrong[who] for kind, who in found["best"].items() if who in wrong},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(command_of(__file__, __doc__, TASKS, measured, points=4))
