"""Products of a batch that one factor lacks, and of contractions that other operators write, on a GPU: held against
float64."""

from __future__ import annotations

import pytest
import torch

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, run_program, view
from fakes.realisers import cuda
from fakes.spread import SPREAD, arguments
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.realise.gemm.tiles import KERNEL

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FLOOR = {torch.float32: 8 * 2.0**-23, torch.bfloat16: 2.0**-7}  # docs/precision.md
SPLIT = point(**KERNEL, tile="128x128", cluster="1x1", split_k=3, streamed="none")
WHOLE = point(**KERNEL, tile="64x64", cluster="1x1", split_k=1, streamed="none")
STREAMED = (
    point(**KERNEL, tile="128x128", cluster="2x1", split_k=1, streamed="left"),
    point(**KERNEL, tile="128x128", cluster="1x2", split_k=1, streamed="right"),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPREAD)
def test_contractions_are_products_of_matrices(tmp_path, name, dtype):
    torch.backends.cuda.matmul.allow_tf32 = False
    function, args = SPREAD[name][0], arguments(name, dtype)
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    (pattern,) = [
        p for p in matched.patterns if p.kind == "product" and p.program.domain == SPREAD[name][2]
    ]  # fmt: skip
    run = GraphRun(graph, Applies(function), exact=False)
    inputs = (n for n in graph.nodes if n.op == "input")
    run.values.update({n.name: a.cuda() for n, a in zip(inputs, args, strict=True)})
    operands = [view(run.value(bind.node), bind, spec.shape)
                for bind, spec in zip(pattern.matches[0].operands, pattern.program.operands, strict=True)]  # fmt: skip
    (truth,) = run_program(pattern.program, [o.double() for o in operands], exact=True)
    (own,) = run_program(pattern.program, operands)
    norm = truth.norm()
    module = load_fused(pattern.program, tmp_path)
    batch = pattern.program.domain[0]
    shared = operands[0].ndim == 3 and any(x.shape[0] not in (1, batch) for x in operands[:2])
    thin = operands[0].ndim == 3 and any(x.shape[0] < batch for x in operands[:2])
    streamed = STREAMED if dtype == torch.float32 and thin and operands[0].shape[-1] % 16 == 0 else ()
    parts = WHOLE if shared and dtype == torch.float32 else SPLIT
    for setting in (parts, *pattern.space.points[:3], *streamed):
        module.configure(**dict(setting))
        (result,) = module.run(*operands)
        error, theirs = (float((r.double() - truth).norm() / norm) for r in (result, own))
        assert result.shape == truth.shape and result.dtype == own.dtype, setting
        assert error <= max(2 * theirs, FLOOR[dtype]), f"{name} {dict(setting)}: {error:.3g}, torch {theirs:.3g}"
