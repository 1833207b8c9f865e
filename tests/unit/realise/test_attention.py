"""Attention for CUDA: what its skeleton is told of a region, which masks are diagonals, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import run_program
from fakes.realisers import H200, cuda
from tilewright.frontend.trace import trace
from tilewright.fusion.attention import attentions
from tilewright.fusion.region import Flow
from tilewright.ir.program import Program, attention_in
from tilewright.realise import table
from tilewright.realise.attention import renderer
from tilewright.realise.attention.points import space
from tilewright.realise.attention.shape import row_of, scores_of, shape_of
from tilewright.realise.attention.visible import visible
from tilewright.realise.realiser import Fit, Refused

B, H, M, N, D = 2, 4, 130, 136, 32


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def program_of(function: Callable[..., Any], *args: Tensor) -> Program:
    """The one attention of a function."""
    ((program, _),), _ = attentions(Flow(trace(Applies(function), args, {})), lambda program: None)
    return program


Q, K, V = (rand(B, H, n, D, dtype=torch.bfloat16) for n in (M, N, N))
APART = torch.arange(N) - torch.arange(M)[:, None]  # key - query


def kept(condition: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention of which those scores are kept for which a condition on (query, key) holds."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        return (q @ k.mT * 0.25).masked_fill(~condition(i, j), -math.inf).softmax(-1) @ v

    return function


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT) * 0.25 + bias, -1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (((q @ k.mT) * 0.25 / 30).tanh() * 30).softmax(-1) @ v


@pytest.mark.parametrize(
    ("condition", "diagonals"),
    [
        (lambda i, j: j <= i, (None, 0)),
        (lambda i, j: j < i + 3, (None, 2)),
        (lambda i, j: i - j < 5, (-4, None)),
        (lambda i, j: (j <= i) & (i < j + 7), (-6, 0)),
        (lambda i, j: ~(j > i), (None, 0)),
        (lambda i, j: (j <= i).logical_and(j > i - 2), (-1, 0)),
        (lambda i, j: j + i < 30, (None, None)),
        (lambda i, j: (j <= i) | (j < 4), (None, None)),
    ],
)
def test_masks_over_positions_are_diagonals(condition: Any, diagonals: Any) -> None:
    """Held against the scores themselves: outside they are minus infinity, and inside the map without masks gives the
    same."""
    program = program_of(kept(condition), Q, K, V)
    item, row = attention_in(program), row_of(program)
    assert item is not None
    found = visible(item.scores, row)
    assert found.diagonals == diagonals
    low, high = (-math.inf if found.diagonals[0] is None else found.diagonals[0],
                 math.inf if found.diagonals[1] is None else found.diagonals[1])  # fmt: skip
    raw = rand(*item.scores.domain, dtype=torch.float64)
    (whole,), (inner,) = (run_program(p, [raw], exact=True) for p in (item.scores, found.inner))
    inside = (low <= APART) & (high >= APART)
    assert torch.equal(whole[..., inside], (whole if diagonals == (None, None) else inner)[..., inside])
    assert bool((whole[..., ~inside] == -math.inf).all())


def test_a_scale_alone_is_a_number_of_the_kernel() -> None:
    for function, scale, whole, inner in (
        (kept(lambda i, j: j <= i), 0.25, True, False),
        (lambda q, k, v: (q @ k.mT / 8).softmax(-1) @ v, 0.125, False, False),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), 1 / math.sqrt(D), False, False),
        (capped, 1.0, True, True),
    ):
        factor, *maps = scores_of(program_of(function, Q, K, V))
        assert factor == pytest.approx(scale)
        assert [bool(m.body) for m in maps] == [whole, inner]


def test_layers_are_read_where_they_lie() -> None:
    def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads, enable_gqa=True).transpose(1, 2).reshape(B, M, -1)

    shape = shape_of(program_of(merged, *(x.transpose(1, 2).contiguous() for x in (Q, K[:, :2], V[:, :2]))))
    assert shape is not None and (shape.domain, shape.row) == ((B, M, H, D), 1)
    assert [(s.dim, s.each, s.size) for s in shape.key.batch] == [(0, 1, B), (2, 2, 2)]
    assert (shape.query.at, shape.key.at) == (2, 2)


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset())


def test_nothing_is_proposed_that_no_gpu_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(capped, Q, K, V)
    monkeypatch.setattr(table, "UNPROVEN", frozenset({"attention"}))
    assert cuda.fits(program) == Refused("no GPU has run the kernel of attention yet")
    monkeypatch.setattr(table, "UNPROVEN", frozenset())
    answer = cuda.fits(program)
    assert isinstance(answer, Fit) and answer.guess and cuda.space(program).guess


@pytest.mark.usefixtures("proven")
@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (biased, (Q, K, V, rand(H, M, N, dtype=torch.bfloat16))),
        (kept(lambda i, j: (j <= i) & (i < j + 7)), (Q, K, V)),
        (capped, (Q, K, V)),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (Q, K, V)),
        (lambda q, k, v: (q @ k.mT / N).relu() @ v, (Q, K, V)),
        (
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0),
            (Q, K, V, rand(M, N, dtype=torch.bfloat16)),
        ),
        (biased, (Q.float(), K.float(), V.float(), rand(B, 1, 1, N))),
    ],
)
def test_it_is_rendered_and_compiles_without_spills(function: Any, args: tuple[Tensor, ...], tmp_path: Path) -> None:
    from tilewright.kernels.cuda.common.cubin import taken

    program = program_of(function, *args)
    answer = cuda.fits(program)
    assert isinstance(answer, Fit) and answer.ranked
    point = cuda.space(program).points[0]
    module = load_fused(program, tmp_path, point=point)
    fused = module._FUSED
    strides = [torch.empty(o.shape).stride() for o in fused.spec.read]
    launch = fused.compile(strides, f"--keep-cubin --dump-dir={tmp_path}")
    kernels = taken(launch.artifacts.CUBIN)
    assert all(k.local_bytes == 0 for k in kernels)
    wanted = fused.point.registers[0] + fused.point.groups * fused.point.registers[1]
    assert max(k.registers for k in kernels) * fused.point.threads >= 128 * wanted


@pytest.mark.usefixtures("proven")
def test_refusals_say_why() -> None:
    narrow = [x[..., :12].contiguous() for x in (Q, K, V)]
    for args, why in (
        ([x.double() for x in (Q, K, V)], ""),
        (narrow, "heads of 12 and 12 columns"),
        ([x[:1, :1] for x in (Q, K, V)], "an attention so small is all launch"),
    ):
        if not why:
            assert not attentions(Flow(trace(Applies(capped), tuple(args), {})), lambda program: None)[0]
            continue
        answer = renderer.fits(program_of(capped, *args), H200)
        assert isinstance(answer, Refused) and why in answer.why


def test_long_rows_of_wide_heads_get_large_tiles() -> None:
    given = torch.zeros(2, 16, 4096, 128, dtype=torch.bfloat16)
    program = program_of(lambda q: F.scaled_dot_product_attention(q, q, q), given)
    shape = shape_of(program)
    assert shape is not None
    first = dict(space(program, shape, H200).points[0])
    assert first["groups"] >= 2 and first["tile_n"] >= 96
