"""ColumnGroups of a product's columns, and whole rows, reduced in its kernel, on a GPU: held against float64."""

from __future__ import annotations

import pytest
import torch

from fakes.fused import load_fused
from fakes.grouped import GROUPED, WIDE_ROWS
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, run_program, view
from fakes.realisers import cuda
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.realise.gemm import renderer as cuda_product
from tilewright.realise.gemm.column_groups import fits, has_column_groups

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FLOOR = {torch.float32: 8 * 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # docs/precision.md
COMMON = {"stages": "auto", "split_k": 1, "streamed": "none", "store": "direct"}
LARGE = point(tile="256x128", cluster="1x2", schedule="cooperative", **COMMON)
TURNS = point(tile="128x128", cluster="2x1", schedule="pingpong", **COMMON)
STREAMED = point(tile="128x128", cluster="2x1", schedule="cooperative", **{**COMMON, "streamed": "left"})


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for dtype in (torch.float32, torch.bfloat16) for name in GROUPED]
    + [(name, dtype) for dtype in (torch.float16, torch.bfloat16) for name in WIDE_ROWS],
)
def test_groups_are_reduced_where_the_product_is_made(tmp_path, monkeypatch, name, dtype):
    torch.backends.cuda.matmul.allow_tf32 = False
    monkeypatch.setattr(cuda_product, "unhidden", lambda program: None)
    function, args, _ = (GROUPED | WIDE_ROWS)[name]
    args = [a.to(dtype, copy=True) for a in args]
    graph = trace(Applies(function), tuple(args), {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    (pattern,) = [p for p in matched.patterns if has_column_groups(p.program)]
    run = GraphRun(graph, Applies(function), exact=False)
    if name in ("softmax", "rows of 64", "rows of batches"):
        args[0][(3, 5, 7)[: args[0].ndim]] = torch.nan  # one row of NaN, and no other
    inputs = (n for n in graph.nodes if n.op == "input")
    run.values.update({n.name: a.cuda() for n, a in zip(inputs, args, strict=True)})
    operands = [view(run.value(bind.node), bind, spec.shape)
                for bind, spec in zip(pattern.matches[0].operands, pattern.program.operands, strict=True)]  # fmt: skip
    (truth,) = run_program(pattern.program, [o.double() for o in operands], exact=True)
    (own,) = run_program(pattern.program, operands)
    sound = truth.isfinite()
    norm = truth[sound].norm()
    module = load_fused(pattern.program, tmp_path)
    settings = [LARGE, *pattern.space.points[:2]]
    settings += [STREAMED] if dtype == torch.float32 and operands[0].shape[-1] % 16 == 0 else []
    settings += [TURNS] if dtype != torch.float32 else []
    for setting in settings:
        if not fits(pattern.program, int(dict(setting)["tile"].split("x")[1])):
            continue
        module.configure(**dict(setting))
        (result,) = module.run(*operands)
        assert result.shape == truth.shape and result.dtype == own.dtype and result.is_contiguous(), setting
        assert bool((result.isfinite() == sound).all()), (name, setting)
        error, theirs = (float((r.double() - truth)[sound].norm() / norm) for r in (result, own))
        assert error <= max(2 * theirs, FLOOR[dtype]), f"{name} {dict(setting)}: {error:.3g}, torch {theirs:.3g}"
        assert torch.equal(module.run(*operands)[0][sound], result[sound]), "the same each time"


def test_sigmoid_and_mish_are_as_accurate_as_torchs(tmp_path):
    at = torch.cat([torch.linspace(-30, 30, 61440), torch.linspace(-100, 100, 4096)]).reshape(16, 4096)[:, :4000]
    at = at.contiguous().cuda()
    for function in (torch.sigmoid, torch.nn.functional.mish, torch.nn.functional.silu):
        matched = match(trace(Applies(function), (at.cpu(),), {}), unsupported=cuda.unsupported, space=cuda.space)
        (pattern,) = matched.patterns
        (found,) = load_fused(pattern.program, tmp_path, name=function.__name__).run(at)
        truth = function(at.double())
        sound = truth.abs() > 1e-37
        error, theirs = (float(((r.double() - truth).abs() / truth.abs())[sound].max()) for r in (found, function(at)))
        assert error <= max(2 * theirs, 4 * 2.0**-23), f"{function.__name__}: {error:.3g}, torch {theirs:.3g}"
