"""DualGemm pairs on a GPU: two products of one left factor in one kernel, held against float64; and judged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.judges import judged_at_first_points
from fakes.modules import Applies
from fakes.program_interpreter import run_program, view
from fakes.realisers import cuda
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.gemm.host.launch import Gemm
from tilewright.kernels.cuda.gemm.host.plan import Point as Plan
from tilewright.realise.gemm.tiles import KERNEL

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FLOOR = {torch.float32: 8 * 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # docs/precision.md


def rand(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def of_calls(x: Tensor, w: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.linear(x, w, bias)) * F.linear(x, v)


def of_halves(x: Tensor, w: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    gate, up = F.linear(x, w, bias).chunk(2, -1)
    return F.gelu(gate) * up + residual


def interleaved(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    y = F.linear(x, w, bias)
    return torch.sigmoid(y[..., ::2]) * (y[..., 1::2] + 1)


def across(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.relu(x @ w) * (x @ v)


def made(function: Callable[..., Any], m: int, n: int, k: int, dtype: torch.dtype) -> list[Tensor]:
    def of(*shape: int) -> Tensor:
        return rand(*shape, dtype=dtype)

    x = of(m, k)
    return {
        of_calls: lambda: [x, of(n, k), of(n, k) * 2, of(n)],
        of_halves: lambda: [x, of(2 * n, k), of(2 * n), of(m, n)],
        interleaved: lambda: [x, of(2 * n, k), of(2 * n)],
        across: lambda: [x, of(k, n), of(k, n) * 2],
    }[function]()


def the_gate(function: Callable[..., Any], args: list[Tensor]) -> Pattern:
    matched = match(trace(Applies(function), tuple(args), {}), unsupported=cuda.unsupported, space=cuda.space)
    (pattern,) = [p for p in matched.patterns if len(p.program.products) == 2]
    return pattern


def operands_of(pattern: Pattern, args: list[Tensor]) -> list[Tensor]:
    values = {f"args_{i}": a.cuda() for i, a in enumerate(args)}
    binds = zip(pattern.matches[0].operands, pattern.program.operands, strict=True)
    return [view(values[bind.node], bind, spec.shape) for bind, spec in binds]


def held(pattern: Pattern, result: Tensor, operands: list[Tensor]) -> None:
    (truth,) = run_program(pattern.program, [o.double() for o in operands], exact=True)
    (own,) = run_program(pattern.program, operands)
    error, theirs = (float((r.double() - truth).norm() / truth.norm()) for r in (result, own))
    assert result.shape == truth.shape and result.is_contiguous() and result.dtype == own.dtype
    assert error <= max(2 * theirs, FLOOR[result.dtype]), f"{pattern.title}: {error:.3g}, torch {theirs:.3g}"


DIRECT = point(**KERNEL, tile="128x256", cluster="2x1", split_k=1, streamed="none")
# 96 columns of each product, in lines of 32.
THIRDS = tuple(
    point(**{**dict(DIRECT), "tile": tile, "cluster": cluster, "store": "bulk", "schedule": schedule})
    for tile, cluster, schedule in (("128x192", "2x1", "pingpong"), ("256x192", "1x2", "cooperative"))
)


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [
        (300, 328, 264, torch.float16),
        (129, 1000, 4104, torch.bfloat16),
        (520, 1000, 1001, torch.bfloat16),
        (257, 330, 301, torch.float32),
    ],
)
@pytest.mark.parametrize("function", [of_calls, of_halves, interleaved, across])
def test_both_products_at_all_points(tmp_path, function, m, n, k, dtype):
    args = made(function, m, n, k, dtype)
    pattern = the_gate(function, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
    for setting in (*pattern.space.points, DIRECT, *(THIRDS if dtype != torch.float32 else ())):
        module.configure(**dict(setting))
        held(pattern, module.run(*operands)[0], operands)


def kept(x: Tensor, w: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    gate, up = F.linear(x, w, bias), F.linear(x, v)
    return F.silu(gate) * up, gate, up


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [(300, 328, 264, torch.float16), (129, 1000, 4104, torch.bfloat16), (257, 330, 301, torch.float32),
     (512, 1024, 512, torch.float32), (48, 4096, 1024, torch.bfloat16)],
)  # fmt: skip
def test_both_products_are_written_beside_at_all_points(tmp_path, m, n, k, dtype):
    args = made(of_calls, m, n, k, dtype)
    pattern = the_gate(kept, args)
    assert len(pattern.program.outputs) == 3
    module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
    truth = run_program(pattern.program, [o.double() for o in operands], exact=True)
    torchs = run_program(pattern.program, operands)
    for setting in pattern.space.points:
        module.configure(**dict(setting))
        for result, exact, own in zip(module.run(*operands), truth, torchs, strict=True):
            error, theirs = (float((r.double() - exact).norm() / exact.norm()) for r in (result, own))
            assert result.shape == exact.shape and result.is_contiguous() and result.dtype == own.dtype
            assert error <= max(2 * theirs, FLOOR[result.dtype]), (dict(setting), error, theirs)


@pytest.mark.parametrize("n", [329, 130, 100])
def test_rows_of_the_result_that_start_anywhere(tmp_path, n):
    args = made(of_calls, 257, n, 1024, torch.bfloat16)
    pattern = the_gate(of_calls, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
    for setting in (*pattern.space.points[:3], DIRECT, *THIRDS):
        module.configure(**dict(setting))
        held(pattern, module.run(*operands)[0], operands)


@pytest.mark.parametrize(
    ("m", "dtype"), [(1, torch.float16), (7, torch.bfloat16), (32, torch.float16), (64, torch.bfloat16)]
)
@pytest.mark.parametrize("function", [of_calls, of_halves, interleaved, across])
def test_few_rows(tmp_path, function, m, dtype):
    args = made(function, m, 1032, 2056, dtype)
    pattern = the_gate(function, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
    tile = str(dict(pattern.space.points[0])["tile"])
    for parts, rows in ((1, 128), (2, 112), (3, 96), (4, 80), (8, 128)):
        module.configure(**{**dict(pattern.space.points[0]), "split_k": parts, "tile": tile.replace("128", str(rows))})
        held(pattern, module.run(*operands)[0], operands)
        assert torch.equal(module.run(*operands)[0], module.run(*operands)[0]), "sums of parts repeat"


def test_few_rows_that_lie_otherwise(tmp_path):
    args = made(across, 16, 1024, 1024, torch.bfloat16)
    pattern = the_gate(across, args)
    module = load_fused(pattern.program, tmp_path)
    x, w, v = operands_of(pattern, args)
    wide = torch.cat([x, x], 1)
    along = w.t().contiguous().t()
    for given in ([x, along, v], [x, along, along], [wide[:, :1024], w, v], [wide[:, 1:1025], w, w]):
        held(pattern, module.run(*given)[0], given)


def test_few_rows_wait_for_the_kernel_that_makes_a_weight(tmp_path):
    """Both start early; with a pause after each, and in a graph, the same to the last bit."""
    args = made(across, 16, 1024, 1024, torch.bfloat16)
    pattern = the_gate(across, args)
    module = load_fused(pattern.program, tmp_path)
    product = Gemm(Plan(tile_m=128, tile_n=128, cluster_m=1), "bf16")
    x, w, v = operands_of(pattern, args)
    w, v = w / 32, v / 32  # a product with w is as large as what it is of
    for setting in pattern.space.points[:3]:
        module.configure(**dict(setting))

        def chain(pause=False):
            y, made = x, v
            for _ in range(12):
                made = product(w, made)
                (y,) = module.run(y, made, w)
                made = product(made, w)
                (y,) = module.run(torch.tanh(y) + x, w, made)
                y = torch.tanh(y) + x
                if pause:
                    torch.cuda.synchronize()
            return y

        truth = chain(pause=True)
        assert truth.isfinite().all() and float(truth.float().abs().max()) > 0
        assert all(torch.equal(chain(), truth) for _ in range(5))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = chain()
        for _ in range(3):
            found.zero_()
            graph.replay()
            assert torch.equal(found, truth)


def test_factors_that_lie_otherwise(tmp_path):
    """Whatever the strides: the guards of model.py look at shapes and types alone."""
    args = made(of_calls, 384, 512, 512, torch.bfloat16)
    pattern = the_gate(of_calls, args)
    module = load_fused(pattern.program, tmp_path)
    x, w, v, bias = operands_of(pattern, args)
    for setting in pattern.space.points[:2]:
        module.configure(**dict(setting))
        wide = torch.cat([x, x], 1)
        for given in (
            [wide[:, :512], w, v, bias],
            [wide[:, 1:513], w, v, bias],
            [x, w.contiguous(), v, bias],
            [x, w, v.contiguous(), bias],
            [x.t().contiguous().t(), w.contiguous(), v.contiguous(), bias],
        ):
            held(pattern, module.run(*given)[0], given)


def test_not_a_number_stays_where_it_is_and_weights_may_change(tmp_path):
    args = made(across, 512, 256, 512, torch.bfloat16)
    pattern = the_gate(across, args)
    module = load_fused(pattern.program, tmp_path)
    x, w, v = operands_of(pattern, args)
    first = module.run(x, w, v)[0]
    v[:, 3] = torch.nan
    (result,) = module.run(x, w, v)
    assert result[:, 3].isnan().all()
    kept = torch.arange(256, device="cuda") != 3
    assert torch.equal(result[:, kept], first[:, kept]), "and nowhere else; again the same to the last bit"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (result,) = module.run(x, w, v)
    v.copy_(w * 3)
    graph.replay()
    assert torch.equal(result, module.run(x, w, v)[0])


LAYER = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Linear(1024, 4096, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, -1)
        return F.silu(gate) * up


def get_inputs():
    return [torch.randn(2, 512, 1024, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("rows", ["2, 512", "1, 1"])
def test_the_judge_takes_a_gated_layer_of_many_and_of_few_rows(tmp_path, rows):
    chosen, timed = judged_at_first_points(LAYER.replace("2, 512", rows), tmp_path)
    assert [len(p.program.products) for p in chosen] == [2], "one kernel is all of it"
    assert isinstance(timed, Timed), timed
    print(timed.ratio("eager"), file=sys.stderr)
