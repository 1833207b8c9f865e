"""Products that write several results, or eight bits, on a GPU: held against float64, and torch's own bits; judged."""

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
from fakes.results import saved
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


FLOOR = {torch.float32: 8 * 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # docs/precision.md
EVERY = {"sum": "kernel", "store": "direct", "schedule": "cooperative", "streamed": "none", "split": "fp16x3"}
SPLIT = point(tile="128x128", cluster="1x1", stages="auto", split_k=3)
BULK = point(tile="128x128", cluster="2x1", stages="auto", split_k=1, store="bulk")
SMALL = point(tile="64x64", cluster="1x1", stages="auto", split_k=1)
SMALL_M = (point(tile="128x64", cluster="1x1", stages="auto", split_k=2, sum="cluster"),
          point(tile="64x128", cluster="1x1", stages="auto", split_k=3, sum="cluster"))  # fmt: skip
STREAMED = (point(tile="128x128", cluster="2x1", stages="auto", split_k=1, streamed="left"),
            point(tile="128x128", cluster="1x1", stages="auto", split_k=1, streamed="right"))  # fmt: skip


def rand(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def masked(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y > 0, F.relu(y).float()


def kept(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return F.relu(y), y > 0


def alone(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w) > b


def eighth(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return (F.linear(x, w).float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def rounded(x: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w)
    return torch.round(y.float() * scale).clamp(-127, 127).to(torch.int8), F.silu(y)


def product_of(function: Callable[..., Any], args: list[Tensor]) -> Pattern:
    found = match(trace(Applies(function), tuple(args), {}), unsupported=cuda.unsupported, space=cuda.space)
    return [p for p in found.patterns if p.kind == "product"][-1]


def held(pattern: Pattern, made: tuple[Tensor, ...], operands: list[Tensor], told: Any) -> None:
    """Floats as any; whole numbers and eight bits are torch's own, and here and there a neighbour."""
    truth = run_program(pattern.program, [o.double() for o in operands], exact=True)
    own = run_program(pattern.program, operands)
    for result, right, theirs in zip(made, truth, own, strict=True):
        assert result.shape == right.shape and result.dtype == theirs.dtype and result.is_contiguous(), told
        if result.dtype in FLOOR:
            error, other = (float((r.double() - right).norm() / right.norm()) for r in (result, theirs))
            assert error <= max(2 * other, FLOOR[result.dtype]), f"{told}: {error:.3g}, torch {other:.3g}"
        elif result.dtype == torch.bool:
            assert (result != theirs).float().mean() < 1e-3, told
        else:
            mine, others = result.float(), theirs.float()
            apart = (mine - others).abs() / (others.abs() / 8).clamp(min=2.0**-9 if result.dtype != torch.int8 else 1)
            assert float(apart.max()) <= 1.001, told
            assert (mine != others).float().mean() < 0.02, told


def operands_of(pattern: Pattern, args: list[Tensor]) -> list[Tensor]:
    values = {f"args_{i}": a.cuda() for i, a in enumerate(args)}
    binds = zip(pattern.matches[0].operands, pattern.program.operands, strict=True)
    return [view(values[bind.node], bind, spec.shape) for bind, spec in binds]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("function", "m", "n", "k"),
    [
        (saved, 300, 328, 272),
        (masked, 257, 136, 528),
        (kept, 513, 328, 272),
        (alone, 300, 264, 272),
        (eighth, 520, 1000, 256),
        (rounded, 301, 264, 272),
    ],
)
def test_every_way_out_writes_all_results(tmp_path, function, m, n, k, dtype):
    torch.backends.cuda.matmul.allow_tf32 = False
    args = [rand(m, k, dtype=dtype), rand(n, k, dtype=dtype) / 8, rand(n, dtype=dtype)]
    pattern = product_of(function, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
    for setting in (*pattern.space.points[:2], SPLIT, BULK, *(STREAMED if dtype == torch.float32 else SMALL_M)):
        module.configure(**EVERY | dict(setting))
        held(pattern, module.run(*operands), operands, dict(setting))


@pytest.mark.parametrize(
    ("function", "n"), [(saved, 131), (masked, 66), (kept, 140), (alone, 129), (rounded, 130), (eighth, 1001)]
)
def test_rows_that_start_anywhere(tmp_path, function, n):
    args = [rand(1030, 264, dtype=torch.bfloat16), rand(n, 264, dtype=torch.bfloat16) / 8,
            rand(n, dtype=torch.bfloat16)]  # fmt: skip
    pattern = product_of(function, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
    for setting in (SMALL, SPLIT):
        module.configure(**EVERY | dict(setting))
        held(pattern, module.run(*operands), operands, dict(setting))


def test_eight_bits_of_what_is_too_large_or_no_number_are_torchs(tmp_path):
    args = [rand(512, 256, dtype=torch.bfloat16), rand(256, 256, dtype=torch.bfloat16),
            torch.tensor([50.0], dtype=torch.bfloat16)]  # fmt: skip
    args[0][3, 5], args[0][4, 6], args[0][5, 7] = torch.nan, torch.inf, -torch.inf
    x, w, scale = (a.cuda().double() for a in args)
    far = (F.linear(x, w) * scale).abs().sub(464).abs() > 8  # from where this torch has NaN, or the largest number
    for function in (eighth, lambda x, w, s: (F.linear(x, w).float() * s).to(torch.float8_e4m3fn)):
        pattern = product_of(function, args)
        assert pattern.program.outputs[0].dtype == "float8_e4m3fn"
        module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
        made, wanted = module.run(*operands)[0].float(), function(*(a.cuda() for a in args)).float()
        assert far.float().mean() > 0.9 and torch.equal(made.isnan()[far], wanted.isnan()[far])
        assert made.isnan()[3].all() and made.nan_to_num().abs().amax() == 448
        assert torch.equal(made[4:6].nan_to_num(), wanted[4:6].nan_to_num()), "infinities"
        apart = (made - wanted).nan_to_num()[far].abs()
        assert (apart > 0).float().mean() < 0.02, "neighbours, where the products differ in their last bits"


def test_both_results_of_a_gate(tmp_path):
    def forward(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = F.linear(x, w).chunk(2, -1)
        gate = F.silu(gate)
        return gate * up, gate

    args = [rand(300, 264, dtype=torch.float16), rand(656, 264, dtype=torch.float16) / 8]
    pattern = product_of(forward, args)
    assert len(pattern.program.products) == 2 and len(pattern.program.outputs) == 2
    module, operands = load_fused(pattern.program, tmp_path), operands_of(pattern, args)
    for setting in pattern.space.points[:3]:
        module.configure(**dict(setting))
        held(pattern, module.run(*operands), operands, dict(setting))


LAYER = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1024, 2048, dtype=torch.bfloat16)
        self.outer = nn.Linear(2048, 1024, dtype=torch.bfloat16)

    def forward(self, x):
        y = self.inner(x)
        h = F.gelu(y)
        return h, self.outer(y), h > 0


def get_inputs():
    return [torch.randn(512, 1024, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
"""


def test_the_judge_takes_a_product_with_several_results(tmp_path):
    chosen, timed = judged_at_first_points(LAYER, tmp_path)
    assert sorted(len(p.program.outputs) for p in chosen) == [1, 3]
    assert isinstance(timed, Timed), timed
    print(timed.ratio("eager"), file=sys.stderr)
