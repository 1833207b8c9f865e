"""Attention for CUDA: what its skeleton is told of a region, which masks are diagonals, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
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
from tilewright.ir.alone import attention_in
from tilewright.ir.program import Program
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


def sunk(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = torch.cat([q @ k.mT * 0.25, sinks.to(q.dtype).view(1, -1, 1, 1).expand(B, -1, q.shape[-2], -1)], -1)
    return scores.softmax(-1)[..., :-1] @ v


def segments(q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor) -> Tensor:
    alike = of_queries[:, None, :, None] == of_keys[:, None, None, :]
    return (q @ k.mT * 0.25).masked_fill(~alike, -math.inf).softmax(-1) @ v


def buffered(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """As minGPT has its mask: a buffer of ones and zeros."""
    return (q @ k.mT * 0.25).masked_fill(kept == 0, -math.inf).softmax(-1) @ v


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


def test_masks_are_found_behind_what_makes_weights_and_in_sums() -> None:
    """Hidden scores that nothing normalises come to 0; a mask that is added counts where values may be spared."""

    def lower(q: Tensor, k: Tensor) -> Tensor:
        return torch.tril(torch.ones(q.shape[-2], k.shape[-2])) == 0

    def unnormed(function: Callable[[Tensor], Tensor]) -> Any:
        return lambda q, k, v: function((q @ k.mT * 0.25).masked_fill(lower(q, k), -math.inf)) @ v

    def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * 0.25 + torch.triu(q.new_full((M, N), -math.inf), diagonal=1)).softmax(-1) @ v

    for function, softmax, spares, diagonals in (
        (unnormed(torch.relu), False, False, (None, 0)),
        (unnormed(lambda x: torch.sigmoid(x - 2)), False, False, (None, 0)),
        (unnormed(lambda x: torch.sigmoid(x.clamp(min=-5))), False, False, (None, None)),
        (unnormed(lambda x: x.softmax(-1)), True, False, (None, 0)),
        (added, True, False, (None, None)),
        (added, True, True, (None, 0)),
    ):
        program = program_of(function, Q, K, V)
        item = attention_in(program)
        assert item is not None and item.softmax == softmax
        shape = shape_of(replace(program, body=(replace(item, spares=spares),)))
        assert shape is not None and shape.visible == diagonals


def test_a_scale_alone_is_a_number_of_the_kernel() -> None:
    for function, scale, whole, inner in (
        (kept(lambda i, j: j <= i), 0.25, True, False),
        (lambda q, k, v: (q @ k.mT / 8).softmax(-1) @ v, 0.125, False, False),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), 1 / math.sqrt(D), False, False),
        (capped, 1.0, True, True),
    ):
        maps = scores_of(program_of(function, Q, K, V))
        assert maps.scale == pytest.approx(scale) and maps.kept is None
        assert [bool(m.body) for m in (maps.whole, maps.inner)] == [whole, inner]


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
        (sunk, (Q, K, V, rand(H))),
        (lambda q, k, v: (q @ k.mT / N).masked_fill(torch.ones(M, N).triu(1) > 0, -math.inf).relu() @ v,
         (Q.float(), K.float(), V.float())),
    ],
)  # fmt: skip
def test_it_is_rendered_and_compiles_without_spills(function: Any, args: tuple[Tensor, ...], tmp_path: Path) -> None:
    program = program_of(function, *args)
    answer = cuda.fits(program)
    assert isinstance(answer, Fit) and answer.ranked
    compiles(program, cuda.space(program).points[0], tmp_path)


@pytest.mark.usefixtures("proven")
@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("function", "args", "knobs"),
    [
        (segments, (Q, K, V, torch.arange(M).expand(B, M) // 20, torch.arange(N).expand(B, N) // 20), {"skips": True}),
        (buffered, (Q, K, V, torch.ones(1, 1, M, N).tril()), {"skips": True}),
        (buffered, (Q.float(), K.float(), V.float(), torch.ones(M, N).tril()), {"skips": True}),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
         tuple(rand(2, h, n, 128, dtype=torch.bfloat16) for h, n in ((16, 1), (2, 4096), (2, 4096))), {"splits": 16}),
        (sunk, (*(rand(B, H, n, 64, dtype=torch.bfloat16) for n in (1, 9000, 9000)), rand(H)), {"splits": 16}),
        (lambda q, k, v: (q @ k.mT / N).relu() @ v, (Q.float(), K.float(), V.float()), {"splits": 2, "tile_n": 32}),
    ],
)  # fmt: skip
def test_skipped_and_shared_tiles_compile(function: Any, args: Any, knobs: dict[str, Any], tmp_path: Path) -> None:
    program = program_of(function, *args)
    shape = shape_of(program)
    assert shape is not None
    every = [dict(p) for p in space(program, shape, H200).points]
    own = next((p for p in every if knobs.items() <= p.items()), every[-1] | knobs)
    compiles(program, tuple(sorted(own.items())), tmp_path)


def compiles(program: Program, point: Any, tmp_path: Path) -> None:
    """Without spills, but for a few numbers where lists of tiles are read, and with the registers that a CTA has."""
    from tilewright.kernels.cuda.common.cubin import taken

    module = load_fused(program, tmp_path, point=point)
    fused = module._FUSED
    strides = [torch.empty(o.shape).stride() for o in fused.spec.read]
    launch = fused.compile(strides, f"--keep-cubin --dump-dir={tmp_path}")
    kernels = taken(launch.artifacts.CUBIN)
    assert all(k.local_bytes <= 24 * fused.point.skips for k in kernels)
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


def test_a_mask_that_operands_tell_is_a_condition_with_the_batch_along_which_it_moves() -> None:
    for function, more, sparse in (
        (buffered, (torch.ones(1, 1, M, N).tril(),), ()),
        (buffered, (torch.ones(B, 1, M, N).tril(),), (0,)),
        (buffered, (torch.ones(B, H, 1, N),), (0, 1)),
        (kept(lambda i, j: (j <= i) & (i < j + 7)), (), None),
        (kept(lambda i, j: (j - i) % 4 == 0), (), ()),
        (capped, (), None),
    ):
        shape = shape_of(program_of(function, Q, K, V, *more))
        assert shape is not None and shape.sparse == sparse
    program = program_of(buffered, Q, K, V, torch.ones(1, 1, M, N).tril())
    condition = scores_of(program).kept
    assert condition is not None
    (name,) = (o.name for o in condition.operands if o.dtype == "bool")
    assert [(i.op, i.args) for i in condition.body if hasattr(i, "args")] == [("logical_not", (name,))]


def test_what_no_gpu_has_run_is_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that skip tiles or share keys are not proposed, and attention with sinks is refused, until one has."""
    monkeypatch.setattr(table, "UNPROVEN", frozenset({"attention variants"}))
    program = program_of(buffered, Q, K, V, torch.ones(1, 1, M, N).tril())
    proposed = [dict(p) for p in cuda.space(program).points]
    assert proposed and all(not p["skips"] and p["splits"] == 1 for p in proposed)
    assert any(dict(p)["skips"] for p in renderer.points(program, H200).points)
    answer = cuda.fits(program_of(sunk, Q, K, V, rand(H)))
    assert isinstance(answer, Refused) and "attention variants" in answer.why
