"""Products of float8_e4m3fn with their scales: which the matcher takes, what they compute, and that they compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import run_program
from fakes.realisers import H200, cuda
from tilewright.facts.pattern import Choice, without_idle
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts, Matched
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.realise.compose import compose

pytestmark = pytest.mark.each(3)


def eighth(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(torch.float8_e4m3fn)


A, W = eighth(512, 256), eighth(1024, 256)
SCALES = {
    "whole": (torch.tensor(0.25), torch.tensor([3.0])),
    "rows": (torch.rand(512, 1) + 0.5, torch.rand(1, 1024) + 0.5),
}


def layer(a: Tensor, w: Tensor, of_a: Tensor, of_w: Tensor, bias: Tensor) -> Tensor:
    return F.relu(torch._scaled_mm(a, w.t(), of_a, of_w, bias=bias, out_dtype=torch.bfloat16))


def matched(function: Any, *args: Tensor) -> Matched:
    return match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space, tiny_bytes=0)


@pytest.mark.parametrize("kind", list(SCALES))
def test_scales_and_bias_are_its_epilogue(kind: str, tmp_path: Path) -> None:
    of_a, of_w = SCALES[kind]
    bias = torch.randn(1024).bfloat16()
    found = matched(layer, A, W, of_a, of_w, bias)
    (product,) = [p for p in found.patterns if p.kind == "product"]
    assert not found.unmatched and product.title == "scaled_mm -> relu"
    operands = product.program.operands
    assert [o.dtype for o in operands] == ["float8_e4m3fn"] * 2 + ["f32"] * 2 + ["bf16"]
    shapes = [(512, 1), (1, 1024)] if kind == "rows" else [(1, 1)] * 2
    assert [o.shape for o in operands[2:]] == [*shapes, (1, 1024)]
    assert all(product.program and product.space.holds(p) for p in product.space.points)
    (made,) = run_program(product.program, [A, W.t(), *(t.reshape(o.shape) for t, o in zip(
        (of_a, of_w, bias), operands[2:], strict=True))])  # fmt: skip
    truth = torch.relu(A.double() @ W.double().t() * of_a * of_w + bias)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.double(), truth, rtol=2**-8, atol=1e-3)

    setting = point(tile="128x128", cluster="2x1", stages="auto", split_k=1)
    module = load_fused(product.program, tmp_path, setting)
    given = [torch.empty(o.shape, dtype=t.dtype, device="meta") for o, t in zip(
        operands, (A, W, of_a, of_w, bias), strict=True)]  # fmt: skip
    given[1] = torch.empty(1024, 256, dtype=A.dtype, device="meta").t()
    assert module.run(*given)[0].dtype == torch.bfloat16
    assert len(module._FUSED._compiled) == 1, "one kernel: nothing is split or copied"
    assert module._FUSED.gemm.point.scheme == "fp8" and module._FUSED.demand(132)["local_bytes"] == 0


def converted(a: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.relu((a.to(torch.bfloat16) @ w.to(torch.bfloat16).t()) * scale)


def test_what_is_converted_for_a_product_is_multiplied_as_it_was() -> None:
    """Of 16 bits: fp32 is more than tensor cores have of a sum of eight. The conversions are no kernels then."""
    scale = torch.rand(1024).bfloat16()
    found = matched(converted, A, W, scale)
    (product,) = [p for p in found.patterns if p.kind == "product"]
    operands = product.program.operands
    assert [(o.dtype, o.shape) for o in operands] == [
        ("float8_e4m3fn", (512, 256)), ("float8_e4m3fn", (256, 1024)), ("bf16", (1, 1024)),
    ]  # fmt: skip
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in found.patterns)
    assert [c.pattern for c in without_idle([found.patterns], recipe)] == [product.id]
    (made,) = run_program(product.program, [A, W.t(), scale.reshape(1, 1024)])
    torch.testing.assert_close(made, converted(A, W, scale), rtol=2**-6, atol=2**-4)
    graph = trace(Applies(converted), (A, W, scale), {})
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="bf16")
    facts = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    files = compose("class Model: ...", (facts,), (found,), without_idle([found.patterns], recipe), device=H200).files
    case = next(f.text for f in files if f.path == "model.py").split("def _case_0", 1)[1].split("def ", 1)[0]
    assert f"{product.id}.run(args_0, args_1.permute((1, 0))" in case and "bfloat16" not in case, case

    wide = matched(lambda a, w: a.float() @ w.float().t(), A, W)
    assert {p.program.product.dtype for p in wide.patterns if p.program.product} == {"f32"}
    odd = matched(lambda a, w: a.to(torch.bfloat16) @ w.to(torch.bfloat16), A, eighth(256, 1024))
    assert {o.dtype for p in odd.patterns if p.kind == "product" for o in p.program.operands} == {"bf16"}


def test_other_scales_and_layouts_are_torchs() -> None:
    def blocks(a: Tensor, w: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return torch.ops.aten._scaled_mm.default(a, w.t(), s, t, None, None, torch.bfloat16)

    of_a, of_w = SCALES["rows"]
    assert [p.kind for p in matched(blocks, A, W, of_a, of_w).patterns] == ["product"]
    program = kp.product(1024, 1024, 1024, "float8_e4m3fn", out="bf16")
    assert cuda.unsupported(program) is None
    for lying, why in (((), "don't lie along K"),):
        other = kp.product(1024, 1024, 1024, "float8_e4m3fn", out="bf16", order=lying)
        assert why in str(cuda.unsupported(other))


def test_points_are_such_as_sum_in_two_levels() -> None:
    for sides in ((4096, 14336, 4096), (64, 4096, 4096), (512, 512, 65536)):
        space = cuda.space(kp.product(*sides, "float8_e4m3fn", out="bf16"))
        assert all(space.holds(p) for p in space.points)
        assert {dict(p)["schedule"] for p in space.points} == {"cooperative"}
        assert not {dict(p)["tile"] for p in space.points} & {"256x192", "256x160", "128x192", "128x160"}
