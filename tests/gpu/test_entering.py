"""Factors that are computed on their way into a product, on a GPU: beside float64 and torch, at odd sizes and strides;
what is not finite stays in its row."""

from __future__ import annotations

import pytest
import torch

from fakes.entering import PROLOGUE
from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import run_program, view, widened
from fakes.realisers import cuda
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SETTINGS = (
    {"tile": "64x64", "cluster": "1x1"},
    {"tile": "256x128", "cluster": "1x2"},
    {"tile": "128x128", "cluster": "2x1", "split": "bf16x6"},
)
SPLIT = {"tile": "128x64", "cluster": "1x1", "split_k": 3}


def entering(name, tmp_path):
    """The pattern, its module, and its operands on the GPU."""
    function, args, _ = PROLOGUE[name]
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    pattern = [p for p in matched.patterns if p.kind == "product" and p.program.product.prologues][-1]
    inputs = dict(zip((n.name for n in graph.nodes if n.op == "input"), args, strict=True))
    sizes = {n.name: n for n in graph.nodes}

    def root(node):
        return inputs[node] if node in inputs else view_of(sizes[node])

    def view_of(node):
        source = root(node.sources[0])
        return source.permute(node.dims) if node.op == "permute" else source.reshape(node.shape)

    operands = [view(root(bind.node), bind, spec.shape).cuda()
                for bind, spec in zip(pattern.matches[0].operands, pattern.program.operands, strict=True)]  # fmt: skip
    return pattern, load_fused(pattern.program, tmp_path), operands


@pytest.mark.parametrize("name", PROLOGUE)
def test_what_is_computed_on_the_way_in_is_as_near_as_torch(tmp_path, name):
    pattern, module, operands = entering(name, tmp_path)
    (truth,) = run_program(pattern.program, list(widened(operands)), exact=True)
    (own,) = run_program(pattern.program, operands)
    defaults = dict(module.KNOBS)
    whole = pattern.program.reduced or any(p.program.reduced for p in pattern.program.product.prologues)
    for setting in (*SETTINGS, *(() if whole else (SPLIT,)), dict(pattern.space.points[0])):
        module.configure(
            **{
                **defaults,
                "split_k": 1,
                "streamed": "none",
                "store": "direct",
                "split": "fp16x3",
                "schedule": "cooperative",
                **setting,
            }
        )
        (mine,) = module.run(*operands)
        assert mine.shape == truth.shape and mine.dtype == own.dtype
        error, least = (float((r.double() - truth).norm() / truth.norm()) for r in (mine, own))
        assert error <= max(2 * least, 8 * 2.0**-23), f"{name} {setting}: {error:.3g}, torch {least:.3g}"


@pytest.mark.parametrize("name", ["activation", "layer norm", "odd norm"])
def test_what_is_not_finite_stays_in_its_row(tmp_path, name):
    pattern, module, operands = entering(name, tmp_path)
    operands[0][3, 5], operands[0][7, 8] = torch.nan, torch.inf
    (own,) = run_program(pattern.program, operands)
    (mine,) = module.run(*operands)
    assert torch.equal(mine.isfinite(), own.isfinite()) and torch.equal(mine.isnan(), own.isnan())
    assert mine.isfinite().sum() >= mine.numel() - 2 * mine.shape[1]


def test_a_streamed_factor_is_not_made_and_rows_that_are_reduced_are_whole(tmp_path):
    _, module, _ = entering("layer norm", tmp_path)
    with pytest.raises(ValueError, match="split_k=1"):
        module.configure(**dict(point(split_k=2)))
    with pytest.raises(ValueError, match="can't be streamed"):
        module.configure(tile="128x128", cluster="2x1", split_k=1, streamed="left", schedule="cooperative")
