"""CPU skeletons against eager torch, torch.compile and a copy of as many bytes.

Run as `python benchmarks/cpu_kernels.py [THREADS [WORDS]]`; WORDS: only tasks with one of them in their name.
Each line: the fastest of interleaved calls in microseconds, and how many times longer the others took. `copy` is a
torch copy between two resident buffers that moves as many bytes as the program must: the floor.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from on_h200 import cpu
from torch import Tensor, nn
from torch.nn import functional as F

from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.program import Operand, Output, Program, Reduction, Scan, Statement

Task = tuple[str, Program, Callable[..., Any], tuple[Tensor, ...]]


def operand(name: str, *shape: int, dtype: str = "f32") -> Operand:
    return Operand(name=name, dtype=dtype, shape=shape)


def let(result: str, op: str, *args: Any, dtype: str = "f32") -> Statement:
    return Statement(result=result, op=op, args=args, dtype=dtype)


def fold(results: str, op: str, arg: str) -> Reduction:
    return Reduction(results=tuple(results.split()), op=op, arg=arg, dtype="f32")


def program(domain: tuple[int, ...], reduced: tuple[int, ...], operands: tuple[Operand, ...], *body: Any) -> Program:
    row = reduced == tuple(range(len(domain)))
    shape = tuple(1 for _ in domain) if row else domain
    output = Output(name="y", dtype="f32", shape=shape)
    return Program(domain=domain, reduced=reduced, operands=operands, body=body, outputs=(output,))


SOFTMAX = (let("c", "sub", "b", "top"), let("e", "exp", "c"), let("y", "div", "e", "total"))


def tasks(b: int, h: int) -> Iterator[Task]:
    x, u, w, v = torch.randn(b, h), torch.randn(b, h), torch.randn(1, h), torch.randn(1, h)
    mask = torch.rand(b, h) > 0.3
    ox, ou, ow, ov = operand("x", b, h), operand("u", b, h), operand("w", 1, h), operand("v", 1, h)
    yield (
        "gelu-tanh by hand",
        program(
            (b, h), (), (ox,), let("p", "mul", "x", "x"), let("q", "mul", "p", "x"), let("k", "mul", "q", 0.044715),
            let("i", "add", "x", "k"), let("j", "mul", "i", 0.7978845608028654), let("t", "tanh", "j"),
            let("o", "add", "t", 1.0), let("g", "mul", "x", 0.5), let("y", "mul", "g", "o"),
        ),
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
        (x,),
    )  # fmt: skip
    yield (
        "swiglu",
        program((b, h), (), (ox, ou), let("s", "sigmoid", "x"), let("a", "mul", "x", "s"), let("y", "mul", "a", "u")),
        lambda x, u: F.silu(x) * u,
        (x, u),
    )
    yield (
        "rms norm",
        program(
            (b, h), (1,), (ox, ow), let("q", "mul", "x", "x"), fold("s", "sum", "q"), let("m", "div", "s", float(h)),
            let("e", "add", "m", 1e-6), let("r", "rsqrt", "e"), let("n", "mul", "x", "r"), let("y", "mul", "n", "w"),
        ),
        lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w,
        (x, w),
    )  # fmt: skip
    yield (
        "layer norm + residual",
        program(
            (b, h), (1,), (ox, ou, ow, ov), let("z", "add", "x", "u"), fold("mean dev", "moments", "z"),
            let("var", "div", "dev", float(h)), let("e", "add", "var", 1e-5), let("r", "rsqrt", "e"),
            let("c", "sub", "z", "mean"), let("d", "mul", "c", "r"), let("f", "mul", "d", "w"),
            let("y", "add", "f", "v"),
        ),
        lambda x, u, w, v: F.layer_norm(x + u, (x.shape[-1],), w[0], v[0]),
        (x, u, w, v),
    )  # fmt: skip
    yield (
        "softmax",
        program((b, h), (1,), (operand("b", b, h),), fold("top total", "softmax_stats", "b"), *SOFTMAX),
        lambda x: torch.softmax(x, -1),
        (x,),
    )
    yield (
        "scale, mask, softmax",
        program(
            (b, h), (1,), (ox, operand("k", b, h, dtype="bool")), let("a", "mul", "x", 0.125),
            let("b", "where", "k", "a", -1e9), fold("top total", "softmax_stats", "b"), *SOFTMAX,
        ),
        lambda x, k: torch.softmax(torch.where(k, x * 0.125, -1e9), -1),
        (x, mask),
    )  # fmt: skip
    yield (
        "huber loss",
        program(
            (b, h), (0, 1), (ox, ou), let("d", "sub", "x", "u"), let("a", "abs", "d"), let("q", "mul", "d", "d"),
            let("g", "mul", "q", 0.5), let("l", "sub", "a", 0.5), let("c", "lt", "a", 1.0, dtype="bool"),
            let("o", "where", "c", "g", "l"), fold("s", "sum", "o"), let("y", "div", "s", float(b * h)),
        ),
        F.huber_loss,
        (x, u),
    )  # fmt: skip
    shape = (max(b * h // (1 << 18), 1), 256, 1024)
    yield (
        "softmax over channels",
        program(shape, (1,), (operand("b", *shape),), fold("top total", "softmax_stats", "b"), *SOFTMAX),
        lambda x: torch.softmax(x, 1),
        (torch.randn(shape),),
    )
    yield (
        "transposed add, relu",
        program((b, h), (), (ox, ou), let("a", "add", "x", "u"), let("y", "maximum", "a", 0.0)),
        lambda x, u: torch.relu(x + u),
        (torch.randn(h, b).t(), u),
    )


def scan(op: str, *args: str, results: int = 1, dim: int = 1) -> Scan:
    return Scan(results=("y", "at")[:results], op=op, args=args, dim=dim, dtype="f32")


def recurrence(gates: Tensor, values: Tensor) -> Tensor:
    """h = a * h + v along dimension 1, as users write it."""
    h, states = torch.zeros_like(values[:, 0]), []
    for t in range(values.size(1)):
        h = gates[:, t] * h + values[:, t]
        states.append(h)
    return torch.stack(states, 1)


def scans(b: int, t: int, h: int) -> Iterator[Task]:
    """Over rows of `t * h` elements, and over `t` steps of `h` channels."""
    rows, wide = (b, t * h), (b, t, h)
    x, place = torch.randn(rows), let("i", "index", 1, dtype="i64")
    yield "cumsum", program(rows, (1,), (operand("x", *rows),), scan("cumsum", "x")), lambda x: x.cumsum(1), (x,)
    sums = program(rows, (1,), (operand("x", *rows),), scan("logcumsumexp", "x"))
    yield "logcumsumexp", sums, lambda x: x.logcumsumexp(1), (x,)
    at = Output(name="at", dtype="i64", shape=rows)
    best = program(rows, (1,), (operand("x", *rows),), place, scan("cummax", "x", "i", results=2))
    yield "cummax", replace(best, outputs=(*best.outputs, at)), lambda x: torch.cummax(x, 1), (x,)
    for tokens, experts, count in ((b * 1024, 64, 8), (b, t * h, 50)):
        logits, shape = torch.randn(tokens, experts), (tokens, count)
        first = Reduction(results=("y", "at"), op="largest", arg="x", dtype="f32", count=count)
        both = (Output(name="y", dtype="f32", shape=shape), Output(name="at", dtype="i64", shape=shape))
        top = program((tokens, experts), (1,), (operand("x", tokens, experts),), first)
        yield f"top {count}", replace(top, outputs=both), lambda x, k=count: torch.topk(x, k), (logits,)
    gates, values = torch.rand(wide), torch.randn(wide)
    operands = (operand("a", *wide), operand("x", *wide))
    yield "recurrence", program(wide, (1,), operands, scan("recurrence", "a", "x")), recurrence, (gates, values)


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def matched(title: str, function: Callable[[Tensor], Any], x: Tensor) -> Task:
    """A function of one tensor that the matcher makes one kernel of."""
    found = match(trace(Applies(function), (x,), {}), unsupported=cpu.unsupported, space=cpu.space, tiny_bytes=0)
    (pattern,) = found.patterns
    (bind,), (read,) = pattern.sites[0].operands, pattern.program.operands
    seen = x.reshape(bind.split).permute(bind.order).reshape(read.shape)
    return title, pattern.program, lambda _: function(x), (seen,)


class NormBackward(nn.Module):
    """All gradients of a layer norm from its input, its statistics and the gradient of its result."""

    def forward(self, x: Tensor, mean: Tensor, rstd: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        hat, inner = (x - mean) * rstd, gradient * weight
        back = inner - inner.mean(-1, keepdim=True) - hat * (inner * hat).mean(-1, keepdim=True)
        return (back * rstd).to(x.dtype), (gradient * hat).sum(0), gradient.float().sum(0)


def norm_backward(b: int, h: int, dtype: torch.dtype) -> Task:
    x, gradient, weight = (torch.randn(b, h).to(dtype), torch.randn(b, h).to(dtype), torch.rand(1, h).to(dtype))
    mean, rstd = torch.randn(b, 1), torch.rand(b, 1)
    given = (x, mean, rstd, gradient, weight)
    found = match(trace(NormBackward(), given, {}), unsupported=cpu.unsupported, space=cpu.space)
    pattern = found.patterns[-1]
    order = {"x": x, "mean": mean, "rstd": rstd, "gradient": gradient, "weight": weight}
    args = tuple(order[bind.node] for bind in pattern.sites[0].operands)

    def eager(*_: Tensor) -> tuple[Tensor, ...]:
        bias = torch.zeros_like(weight[0])
        wanted = [True, True, True]
        made: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
            gradient, x, [h], mean.to(dtype), rstd.to(dtype), weight[0], bias, wanted
        )
        return made

    return f"layer norm backward {str(dtype).removeprefix('torch.')}", pattern.program, eager, args


def short_rows(h: int) -> Iterator[Task]:
    """2^20 elements in rows of `h`."""
    x = torch.randn((1 << 20) // h, h)
    yield matched("short softmax", lambda x: torch.softmax(x, 1), x)
    yield matched("short layer norm", lambda x: F.layer_norm(x, x.shape[1:]), x)
    yield matched("short logsumexp", lambda x: torch.logsumexp(x, 1), x)
    yield matched("short sum", lambda x: x.sum(1), x)
    yield matched("short gelu and sum", lambda x: F.gelu(x).sum(1), x)
    yield matched("short argmax of a softmax", lambda x: torch.softmax(x, 1).argmax(1), x)


def far(b: int, h: int) -> Iterator[Task]:
    x = torch.randn(b, h)
    yield matched("far: softmax, none of it", lambda x: torch.softmax(x, 1), x)
    yield matched("far: softmax, half of it", lambda x: torch.softmax(torch.where(x > 0, x, -1e38), 1), x)


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.rms_norm(x, x.shape[-1:])
    scale = y.abs().amax(-1, keepdim=True) / 127
    return torch.round(y / scale).to(torch.int8), scale


def to_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn), scale


def traced(b: int, h: int) -> Iterator[Task]:
    """Changes of layout, places of maxima, results of eight bits."""
    x, images = torch.randn(b, h), torch.randn(b * h // (64 * 56 * 56) + 1, 64, 56, 56)
    yield matched("transpose", lambda x: x.t().contiguous(), x)
    yield matched("transpose bf16", lambda x: x.t().contiguous(), x.bfloat16())
    yield matched("transpose u8", lambda x: x.t().contiguous(), x.to(torch.uint8))
    yield matched("transpose i64", lambda x: x.t().contiguous(), x.long())
    yield matched("NCHW to NHWC", lambda x: x.permute(0, 2, 3, 1).contiguous(), images)
    yield matched("NHWC to NCHW", lambda x: x.contiguous(), images.to(memory_format=torch.channels_last))
    yield matched("NCHW to NHWC bf16", lambda x: x.permute(0, 2, 3, 1).contiguous(), images.bfloat16())
    yield matched("relu, NCHW to NHWC", lambda x: F.relu(x).permute(0, 2, 3, 1).contiguous(), images)
    yield matched("max pool with places", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), images)
    if b * h >= 1 << 20:
        yield norm_backward(b, h, torch.float32)
        yield norm_backward(b, h, torch.bfloat16)
    yield matched("rms norm to int8", to_int8, x)
    yield matched("rows to e4m3", to_e4m3, x)


def build(made: Program, folder: Path, name: str) -> ModuleType:
    point = cpu.space(made).points[0]
    for file in (*cpu.render(made, name, point), *cpu.skeleton_files([made])):
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_text(file.text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fastest_us(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    best = [float("inf")] * len(calls)
    for call in calls * 2:
        call()
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < 5:
        rounds += 1
        for k, call in enumerate(calls):
            start = time.perf_counter_ns()
            call()
            best[k] = min(best[k], (time.perf_counter_ns() - start) / 1e3)
    return best


def measure(task: Task, folder: Path, name: str) -> str:
    """One line of the table."""
    title, made, eager, args = task
    run = build(made, folder, name).run
    torch._dynamo.reset()
    compiled = torch.compile(eager)
    source = torch.zeros(max(made.traffic_bytes // 8, 1))
    target = torch.zeros_like(source)
    ours, *others = fastest_us(
        [lambda: run(*args), lambda: eager(*args), lambda: compiled(*args), lambda: target.copy_(source)], 0.6
    )
    label = f"{title} {'x'.join(map(str, made.domain))}"
    return f"{label:38}{ours:10.1f}" + "".join(f"{other / ours:9.2f}" for other in others)


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    wanted = sys.argv[2:]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'':38}{'ours us':>10}{'eager':>9}{'compile':>9}{'copy':>9}")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        sys.path.insert(0, folder)
        sizes = [f"{b}_{h}" for b, h in ((8, 8), (512, 1024), (2048, 4096))]
        lists = [*(tasks(*map(int, size.split("_"))) for size in sizes), scans(16, 32, 512), scans(64, 64, 1024)]
        lists += [traced(512, 1024), traced(2048, 4096)]
        lists += [*map(short_rows, (7, 16, 32, 64)), far(6144, 768)]
        names = [*sizes, "small", "large", "traced", "traced_large", "rows_7", "rows_16", "rows_32", "rows_64", "far"]
        for size, found in zip(names, lists, strict=True):
            for k, task in enumerate(found):
                if not wanted or any(word in task[0] for word in wanted):
                    print(measure(task, Path(folder), f"fused_{size}_{k}"), flush=True)


if __name__ == "__main__":
    main()
