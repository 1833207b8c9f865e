"""Products of few rows with weights of eight bits on a GPU: held against float64, and judged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.eight_bits import (
    behind,
    from_the_left,
    groups_from_the_left,
    in_fp32,
    in_groups,
    in_groups_beside_rows,
    rand,
    scaled,
    weight,
)
from fakes.fused import load_fused
from fakes.judges import judged_at_first_points
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, run_program, view
from fakes.realisers import cuda
from tilewright.facts.outcome import Timed
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FLOOR = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # docs/precision.md


def mixed_input(function: Callable[..., Any], args: tuple[Tensor, ...]) -> Pattern:
    """The product that its weights enter."""
    found = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
    (pattern,) = [p for p in found.patterns if p.program.product is not None and p.program.product.prologues]
    return pattern


def operands_of(function: Callable[..., Any], pattern: Pattern, args: tuple[Tensor, ...]) -> list[Tensor]:
    run = GraphRun(trace(Applies(function), args, {}), Applies(function), exact=False)
    run.values.update({f"args_{i}": a.cuda() for i, a in enumerate(args)})
    binds = zip(pattern.matches[0].operands, pattern.program.operands, strict=True)
    return [view(run.value(bind.node), bind, spec.shape) for bind, spec in binds]


def held(pattern: Pattern, result: Tensor, operands: list[Tensor], told: Any) -> None:
    exact = [o.double() if o.is_floating_point() else o for o in operands]
    (truth,) = run_program(pattern.program, exact, exact=True)
    (own,) = run_program(pattern.program, operands)
    error, theirs = (float((r.double() - truth).norm() / truth.norm()) for r in (result, own))
    assert result.shape == truth.shape and result.dtype == own.dtype
    assert error <= max(2 * theirs, FLOOR[result.dtype]), f"{told}: {error:.3g}, torch {theirs:.3g}"


@pytest.mark.parametrize("function", [scaled, in_fp32, behind, from_the_left])
@pytest.mark.parametrize(
    ("m", "n", "k", "kind", "dtype"),
    [(2, 1000, 2048, torch.int8, torch.bfloat16), (16, 2050, 1152, torch.float8_e4m3fn, torch.bfloat16),
     (7, 4096, 512, torch.uint8, torch.float16), (33, 1030, 1024, torch.int8, torch.float16),
     (20, 1024, 1024, torch.float8_e4m3fn, torch.float16)],
)  # fmt: skip
def test_at_all_points(tmp_path, function, m, n, k, kind, dtype):
    args = (rand(m, k, dtype=dtype), weight(n, k, kind), rand(n, dtype=dtype) / 64)
    pattern = mixed_input(function, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(function, pattern, args)
    settings = [dict(p) for p in pattern.space.points]
    if m <= 32:
        settings.append(settings[-1] | {"tile": str(settings[0]["tile"]).replace("128", "64")})
    for setting in settings:
        module.configure(**setting)
        held(pattern, module.run(*operands)[0], operands, setting)
        assert torch.equal(module.run(*operands)[0], module.run(*operands)[0]), "sums of parts repeat"


@pytest.mark.parametrize(("function", "group", "kind"), [
    (in_groups, 128, torch.int8), (in_groups, 32, torch.float8_e4m3fn), (in_groups_beside_rows, 64, torch.uint8),
    (in_groups, 512, torch.int8), (groups_from_the_left, 128, torch.int8),
])  # fmt: skip
def test_a_scale_for_every_group_of_k(tmp_path, function, group, kind):
    n, k = 1030, 2048
    more = (rand(n, dtype=torch.bfloat16),) if function is in_groups_beside_rows else ()
    args = (rand(5, k, dtype=torch.bfloat16), weight(n, k, kind), rand(n, k // group, dtype=torch.bfloat16), *more)
    pattern = mixed_input(function, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(function, pattern, args)
    for setting in map(dict, pattern.space.points):
        module.configure(**setting)
        held(pattern, module.run(*operands)[0], operands, setting)


@pytest.mark.parametrize("function", [scaled, behind])
def test_one_row(tmp_path, function):
    args = (rand(1, 4096, dtype=torch.bfloat16), weight(1536, 4096, torch.int8), rand(1536, dtype=torch.bfloat16))
    pattern = mixed_input(function, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(function, pattern, args)
    held(pattern, module.run(*operands)[0], operands, "one row")


def test_every_number_of_eight_bits_is_exact(tmp_path):
    """One of K is read for each row: what comes out is that byte."""
    for kind in (torch.int8, torch.uint8, torch.float8_e4m3fn):
        every = torch.arange(256).to(torch.uint8).view(kind)
        w = every.repeat(16, 1).t().contiguous().repeat(8, 8 * 2)  # (2048, 256): a row of one number
        x = torch.zeros(8, 256, dtype=torch.bfloat16)
        x[torch.arange(8), torch.arange(8) * 37 % 256] = 1
        args = (x, w, torch.ones(2048, dtype=torch.bfloat16))
        pattern = mixed_input(scaled, args)
        module, operands = load_fused(pattern.program, tmp_path), operands_of(scaled, pattern, args)
        (made,) = module.run(*operands)
        wanted = every.float().repeat(8).expand(8, 2048)
        assert torch.equal(made.cpu().float().nan_to_num(1e4), wanted.nan_to_num(1e4)), kind


def test_every_place_of_k_meets_its_own(tmp_path):
    args = (torch.eye(512, dtype=torch.bfloat16)[96:112], weight(1024, 512, torch.int8), torch.ones(1024).bfloat16())
    pattern = mixed_input(scaled, args)
    module, operands = load_fused(pattern.program, tmp_path), operands_of(scaled, pattern, args)
    assert torch.equal(module.run(*operands)[0].cpu(), args[1][:, 96:112].t().bfloat16())


def test_factors_that_lie_otherwise_and_weights_that_change(tmp_path):
    args = (rand(5, 1024, dtype=torch.bfloat16), weight(1024, 1024, torch.int8), rand(1024, dtype=torch.bfloat16))
    pattern = mixed_input(scaled, args)
    module = load_fused(pattern.program, tmp_path)
    x, w, scale = operands_of(scaled, pattern, args)
    wide = torch.cat([w, w], 0)
    for given in ([x, w, scale], [x, w.contiguous(), scale], [x, wide[:1024], scale], [x, wide[7:1031], scale],
                  [x.t().contiguous().t(), w, scale], [torch.cat([x, x], 1)[:, 1:1025], w, scale],
                  [x, w, scale[:, :1].expand(1, 1024)]):  # fmt: skip
        held(pattern, module.run(*given)[0], given, [t.stride() for t in given])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (result,) = module.run(x, w, scale)
    w.copy_(w.flip(0))
    graph.replay()
    held(pattern, result, [x, w, scale], "after a change")


LAYER = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (8192, 2048), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(8192, dtype=torch.bfloat16) / 64)

    def forward(self, x):
        return F.silu(F.linear(x, self.weight.to(x.dtype) * self.scale[:, None]))


def get_inputs():
    return [torch.randn(4, 2048, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
"""


GROUPS = LAYER.replace("torch.rand(8192, d", "torch.rand(8192, 16, d").replace(
    "self.weight.to(x.dtype) * self.scale[:, None]",
    "(self.weight.unflatten(1, (16, 128)).to(x.dtype) * self.scale[:, :, None]).flatten(1)",
)


@pytest.mark.parametrize("source", [LAYER, GROUPS])
def test_the_judge_takes_a_layer_of_eight_bits(tmp_path, source):
    chosen, timed = judged_at_first_points(source, tmp_path)
    assert any(p.program.product is not None and p.program.product.prologues for p in chosen)
    assert isinstance(timed, Timed), timed
    print(timed.ratio("eager"), file=sys.stderr)
