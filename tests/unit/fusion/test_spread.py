"""Contractions that are products of matrices once their dimensions are put in groups: a batch that one factor lacks, a
result that lies otherwise, equations without arrows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import GraphRun
from fakes.realisers import cuda, gpu
from fakes.spread import SPREAD, arguments
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.validation import validate
from tilewright.realise.case_code import case_code
from tilewright.realise.gemm.shape import matrices

pytestmark = pytest.mark.each(3)


def found(name: str, dtype: torch.dtype = torch.float32) -> Pattern:
    graph = trace(Applies(SPREAD[name][0]), arguments(name, dtype), {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    products = [p for p in matched.patterns if p.kind == "product"]
    for pattern in products:
        validate(pattern.program)
    (pattern,) = [p for p in products if p.program.domain == SPREAD[name][2]]
    return pattern


@pytest.mark.parametrize("name", SPREAD)
def test_the_product_is_what_the_module_gives(name: str) -> None:
    function, _, domain = SPREAD[name]
    pattern = found(name)
    assert pattern.program.domain == domain
    args = [a.double() for a in arguments(name)]
    run = GraphRun(trace(Applies(function), arguments(name), {}), Applies(function), patterns=[pattern])
    torch.testing.assert_close(run(*args), function(*args))
    assert run.fused == set(pattern.matches[0].nodes)


@pytest.mark.few(0, 1, 4)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("one left for a batch", torch.float32), ("one right, transposed", torch.bfloat16),
     ("some of both for a batch", torch.float32), ("some left for a batch", torch.bfloat16),
     ("keys repeated", torch.bfloat16)],
)  # fmt: skip
def test_kernels_compile_for_hopper(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    module = load_fused(found(name, dtype).program, tmp_path)
    module._FUSED.prepare(gpu())
    assert module._FUSED.demand(132)["local_bytes"] == 0


def test_repeated_keys_are_read_where_they_lie() -> None:
    """Neither written anew nor taken by another kernel: what repeats them is spared."""
    for name in ("keys repeated", "keys expanded"):
        graph = trace(Applies(SPREAD[name][0]), arguments(name), {})
        (pattern,) = match(graph, unsupported=cuda.unsupported, space=cuda.space).patterns[-1:]
        keys = pattern.matches[0].operands[1]
        assert keys.split == (2, 2, 1, 264, 64) and len(pattern.matches[0].spared) == 1
        text = "\n".join(case_code(graph, [pattern], target="cuda").body)
        assert "fused_" in text and "torch.ops" not in text and "expand(" not in text


def test_what_is_no_product_of_two_matrices_is_left() -> None:
    left = [
        (lambda a, b: torch.einsum("ijk,kl->il", a, b), ((136, 4, 200), (200, 184))),  # summed in one of them alone
        (lambda a, b: torch.einsum("bij,bj->bi", a, b), ((5, 136, 200), (5, 200))),  # no columns
        (lambda a, b: a @ b, ((3, 1, 4, 72, 128), (3, 2, 4, 128, 264))),  # what one has of the batch is apart
    ]
    for function, shapes in left:
        args = tuple(torch.randn(s) for s in shapes)
        matched = match(trace(Applies(function), args, {}), unsupported=cuda.unsupported, space=cuda.space)
        assert not [p for p in matched.patterns if p.kind == "product"], shapes
    assert "of whose batch a part between others is broadcast" in matched.unmatched[0]


def test_heads_that_lie_behind_rows_are_read_where_they_lie_too() -> None:
    """Rows of the heads of a group are one matrix's where they are neighbours; where they are not, each head takes its
    group's keys, and nothing is copied."""

    def forward(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        queries, keys = q.view(1, 136, 8, 64).transpose(1, 2), k.view(1, 264, 2, 64).transpose(1, 2)
        return queries @ keys.repeat_interleave(4, 1).mT

    args = torch.randn(1, 136, 512), torch.randn(1, 264, 128)
    matched = match(trace(Applies(forward), args, {}), unsupported=cuda.unsupported, space=cuda.space)
    (pattern,) = matched.patterns
    assert matrices(pattern.program).each == (1, 4)
    left, right = pattern.program.operands
    assert (left.shape, left.order, right.shape) == ((8, 136, 64), (1, 0, 2), (2, 64, 264))
