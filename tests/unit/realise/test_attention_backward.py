"""Gradients of attention for CUDA: what the skeletons are told, what compiles, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.attention_step import step
from fakes.fused import load_fused
from fakes.program_interpreter import run_program
from fakes.realisers import H200, cuda
from tilewright.ir.program import Program
from tilewright.realise import table
from tilewright.realise.attention import backward
from tilewright.realise.attention.gradient_shape import gradient_shape, maps_of
from tilewright.realise.realiser import Fit, Refused

B, H, M, N, D = 2, 3, 136, 200, 32


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


Q, K, V = (rand(B, H, n, D) for n in (M, N, N))


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset())


def program_of(function: Callable[..., Any], *args: Tensor) -> Program:
    (found,) = (p.program for p in step(function, *args).patterns if p.kind == "attention_backward")
    return found


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return ((q @ k.mT) * 0.25 + bias).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return (q @ k.mT * 0.25).masked_fill(~kept, -math.inf).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT / 5).tanh() * 5).softmax(-1) @ v


def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhmn,bne->bhme", (torch.einsum("bhmd,bnd->bhmn", q, k) * 0.25).softmax(-1), v)


def test_the_skeleton_is_told_what_is_shared_and_summed() -> None:
    shape = gradient_shape(program_of(shared, Q, K[:, 0], V[:, 0]))
    assert shape is not None and (shape.domain, shape.depth, shape.columns) == ((B, H, M, N), D, D)
    assert shape.shared == (1,) and [s.dim for s in shape.key.batch] == [0]
    program = program_of(biased, Q, K, V, rand(1, H, M, N))
    assert [o.shape for o in program.outputs[3:]] == [(1, H, M, N)]


def test_where_all_is_visible_the_map_asks_for_no_position() -> None:
    program = program_of(causal, Q, K, V)
    whole, inner = maps_of(program)
    assert any(i.op == "index" for i in whole.body) and not any(i.op == "index" for i in inner.body)
    given = [torch.randn(o.shape).to(torch.float64) for o in whole.operands]
    below = torch.ones(M, N, dtype=torch.bool).tril()
    for one, other in zip(*(run_program(p, given, exact=True) for p in (whole, inner)), strict=True):
        assert torch.equal(one[..., below], other[..., below]) and not one[..., ~below].any()


@pytest.mark.usefixtures("proven")
@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (biased, (Q, K, V, rand(1, H, M, N))),
        (causal, (Q, K, V)),
        (capped, tuple(x.half() for x in (Q, K, V))),
        (shared, (Q, K[:, 0], V[:, 0])),
        (lambda q, k, v: (q @ k.mT / N).relu() @ v, (Q, K, V)),
        (capped, tuple(rand(B, n, 256) for n in (200, 264, 264))),
        (biased, (*(rand(B, H, 256, 128) for _ in range(3)), rand(B, 1, 256, 256))),
    ],
)
def test_it_is_rendered_and_compiles_without_spills(function: Any, args: tuple[Tensor, ...], tmp_path: Path) -> None:
    from tilewright.kernels.cuda.common.cubin import taken

    program = program_of(function, *args)
    answer = cuda.fits(program)
    assert isinstance(answer, Fit) and answer.ranked
    module = load_fused(program, tmp_path, point=cuda.space(program).points[0])
    fused = module._FUSED
    strides = [torch.empty(o.shape).stride() for o in fused.spec.read]
    kernels = taken(fused.compile(strides, f"--keep-cubin --dump-dir={tmp_path}").artifacts.CUBIN)
    assert len(kernels) >= 2 and all(k.local_bytes == 0 for k in kernels)
    wanted = fused.point.registers[0] + fused.point.groups * fused.point.registers[1]
    assert max(k.registers for k in kernels) * fused.point.threads >= 128 * wanted


@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((*(x.float() for x in (Q, K, V)), rand(1, H, M, N).float()), "multiply in fp16 and bf16 alone"),
        ((Q, K, V, rand(B, 1, 1, N)), "an operand that is the same for several queries or keys"),
        ((*(x[..., :12].contiguous() for x in (Q, K, V)), rand(1, H, M, N)), "heads of 12 and 12 columns"),
        ((*(x[:1, :1] for x in (Q, K, V)), rand(1, 1, M, N)), "an attention so small is all launch"),
    ],
)
def test_refusals_say_why(args: tuple[Tensor, ...], why: str) -> None:
    answer = backward.fits(program_of(biased, *args), H200)
    assert isinstance(answer, Refused) and why in answer.why
