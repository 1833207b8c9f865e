"""Linear layers whose kernel writes several results, or eight bits; gated pairs in fp32, or of every other column;
pooling: one kernel of ours, or two.

    python benchmarks/results_beside.py --json benchmarks/results/h200/results-beside.json

`one` is all in one kernel, `two` leaves to a second one what follows the product (of a gated pair of two matrices: the
other product, too). Times in us, medians of rounds in random turns with cold caches, launches hidden; the best point of
each is chosen in the first half of the rounds, times are those of the second; `ratio` is a player's time over ours,
with the quartiles of the rounds. The floor: 780 TFLOP/s in 16 bits, a third of it in fp32, and 4.2 TB/s for what is
read and written once. `off`: of floats the error in the norm against float64, of other results the share that differs
from torch's. A process a task compiles; they measure one at a time. No claim: the judge measures what is claimed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from tilewright.ir.graph import Graph

ROUNDS = 16
AHEAD_CYCLES = 300_000
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
RATES = {"f32": 260.0, "bf16": 780.0}  # TFLOP/s
BYTES_A_US = 4.2e6
CHECKED = 256  # rows
DEVICE = GPU


def both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y, F.gelu(y)


def masked(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return F.relu(y), y > 0


def whole_numbers(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return torch.round(F.linear(x, w).float() * scale.float()).clamp(-127, 127).to(torch.int8)


def float8(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return (F.linear(x, w).float() * scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)


def gate(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def woven(x: Tensor, w: Tensor) -> Tensor:
    """GeGLU of which gate and value are neighbours."""
    y = F.linear(x, w)
    return F.gelu(y[..., ::2]) * y[..., 1::2]


def means(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.avg_pool1d(F.linear(x, w, b).unsqueeze(1), 16).squeeze(1)


def maxima(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Maxout of pairs."""
    return F.linear(x, w, b).unflatten(1, (-1, 2)).amax(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """(M, N, K) of a product and what is done with it."""

    function: Callable[..., Any]
    sizes: tuple[int, int, int]
    dtype: str

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        m, n, k = self.sizes
        if self.function is woven:
            return (m, k), (2 * n, k)
        return ((m, k), (n, k), (n, k) if self.function is gate else (n,))


KINDS = {"y, gelu(y)": both, "relu(y), mask": masked, "int8": whole_numbers, "float8": float8}
SIZES = ((4096, 4096, 4096), (8192, 3072, 768), (2048, 14336, 4096))
TASKS = {
    f"gate f32 {'x'.join(map(str, sizes))}": Task(function=gate, sizes=sizes, dtype="f32")
    for sizes in ((8192, 3072, 768), (4096, 8192, 2048), (512, 14336, 4096), (2048, 18944, 3584), (256, 4096, 1024))
} | {
    f"{kind} {dtype} {'x'.join(map(str, sizes))}": Task(function=function, sizes=sizes, dtype=dtype)
    for dtype in DTYPES for kind, function in KINDS.items() for sizes in SIZES
} | {
    f"woven gate {dtype} {'x'.join(map(str, sizes))}": Task(function=woven, sizes=sizes, dtype=dtype)
    for dtype, sizes in (("bf16", (16, 14336, 4096)), ("bf16", (4096, 8192, 2048)), ("bf16", (2048, 14336, 4096)),
                         ("f32", (4096, 8192, 2048)))
} | {
    f"{kind} {dtype} {'x'.join(map(str, sizes))}": Task(function=function, sizes=sizes, dtype=dtype)
    for kind, function in (("means of 16", means), ("maxima of 2", maxima)) for dtype in DTYPES for sizes in SIZES[:2]
}  # fmt: skip


class Chain:
    """Patterns run one after the other, as a candidate would, the last product at its point of this number: what the
    graph gives."""

    def __init__(self, graph: Graph, patterns: Sequence[Pattern], folder: Path, number: int) -> None:
        last = max(i for i, p in enumerate(patterns) if p.kind == "product")
        self.modules = [load_fused(p.program, folder, p.space.points[number] if i == last else None)
                        for i, p in enumerate(patterns)]  # fmt: skip
        for module in self.modules:
            module._FUSED.prepare(DEVICE)
        self.patterns = patterns
        self.nodes = {node.name: node for node in graph.nodes}
        self.wanted = list(graph.outputs)

    def __call__(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        values = dict(inputs)
        for module, pattern in zip(self.modules, self.patterns, strict=True):
            site = pattern.sites[0]
            given = [view(values[b.node], b, o.shape)
                     for b, o in zip(site.operands, pattern.program.operands, strict=True)]  # fmt: skip
            for bind, result in zip(site.outputs, module.run(*given), strict=True):
                values[bind.node] = view(result, bind, self.nodes[bind.node].shape)
        return [values[name] for name in self.wanted]


def matched(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Any:
    graph = trace(Applies(function), tuple(torch.empty(s, dtype=dtype, device="meta") for s in shapes), {})
    return graph, match(graph, unsupported=cuda.unsupported, space=cuda.space).patterns


def chains(task: Task, points: int, folder: Path) -> dict[str, Chain]:
    """Compiled."""
    dtype = DTYPES[task.dtype]
    graph, found = matched(task.function, task.inputs, dtype)
    one = max(found, key=lambda p: len(p.sites[0].nodes))
    if task.function is gate:
        two = sorted((p for p in found if p.kind == "product" and p is not one), key=lambda p: len(p.program.operands))
    elif task.function in (woven, means, maxima):
        two = [next(p for p in found if p.kind == "product" and p is not one and len(p.program.products) == 1),
               next(p for p in found if p.kind != "product")]  # fmt: skip
    else:
        bare = F.linear if task.function in (both, masked) else lambda x, w, scale: F.linear(x, w)
        two = [matched(bare, task.inputs, dtype)[1][0], next(p for p in found if p.kind == "pointwise")]
    return {
        f"{who} {' '.join(str(v) for v in dict(_last(patterns).space.points[number]).values())}":
        Chain(graph, patterns, folder, number)
        for who, patterns in (("one", [one]), ("two", two))
        for number in range(min(points, len(_last(patterns).space.points)))
    }  # fmt: skip


def _last(patterns: Sequence[Pattern]) -> Pattern:
    return [p for p in patterns if p.kind == "product"][-1]


def off(mine: Tensor, theirs: Tensor, truth: Tensor) -> float:
    if mine.dtype in DTYPES.values():
        return float((mine[:CHECKED].double() - truth).norm() / truth.norm())
    return float((mine.float() != theirs.float()).float().mean())


def listed(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple | list) else [value]


def measured(name: str, points: int) -> dict[str, Any]:
    task = TASKS[name]
    k = task.sizes[2]
    dtype = DTYPES[task.dtype]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        args = [(torch.randn(s, device="cuda") / (k**0.5 if i and len(s) == 2 else 1.0)).to(dtype)
                for i, s in enumerate(task.inputs)]  # fmt: skip
        if task.function in (whole_numbers, float8):
            args[2] = args[2].abs() * 30
        inputs = {f"args_{i}": a for i, a in enumerate(args)}
        compiled = torch.compile(task.function)
        calls: dict[str, Callable[[], Any]] = {
            "eager": lambda: task.function(*args),
            "compile": lambda: compiled(*args),
        }
        for who, chain in chains(task, points, Path(folder)).items():
            calls[who] = lambda chain=chain: chain(inputs)  # type: ignore[misc]
        compiled(*args)
        with alone():
            truth = listed(task.function(args[0][:CHECKED].double(), *(a.double() for a in args[1:])))
            theirs = listed(task.function(*args))
            wrong = {who: max(map(off, listed(call()), theirs, truth)) for who, call in calls.items()}
            written = sum(t.numel() * t.element_size() for t in theirs)
            del theirs, truth
            graphs = {who: graphed([call]) for who, call in calls.items()}
            samples = sampled(graphs, ROUNDS, delay_cycles=AHEAD_CYCLES)
    m, n, k = task.sizes
    products = 2 if task.function in (gate, woven) else 1
    read = DTYPES[task.dtype].itemsize * (m * k + products * n * k)
    found = told({who: [1e3 * ms for ms in ts] for who, ts in samples.items()}, ("one", "two", "compile", "eager"))
    return found | {
        "sizes": task.sizes, "dtype": task.dtype, "off": {kind: wrong[who] for kind, who in found["best"].items()},
        "floor_us": max(2.0e-6 * products * m * n * k / RATES[task.dtype], (read + written) / BYTES_A_US),
    }  # fmt: skip


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    sys.exit(command_of(__file__, __doc__, TASKS, measured, points=2))
