"""Gradients of attention on CPUs, built and run here: against float64, and no worse than torch's own."""

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
from fakes.realisers import CPU, cpu
from tilewright.ir.program import Program
from tilewright.realise.attention import cpu_backward
from tilewright.realise.realiser import Refused

pytestmark = pytest.mark.filterwarnings("ignore")
ALLOWED = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
HALF, WIDE = torch.float16, torch.bfloat16


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT * 0.3 + bias).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return torch.where(kept, q @ k.mT * 0.3, -math.inf).softmax(-1) @ v


def sliding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return torch.where((j <= i + 3) & (j > i - 20), q @ k.mT, -math.inf).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT / 5).tanh() * 5).softmax(-1) @ v


def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhmn,bne->bhme", (torch.einsum("bhmd,bnd->bhmn", q, k) * 0.3).softmax(-1), v)


def relu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / k.shape[-2]).relu() @ v


Q, K, V = rand(2, 4, 70, 24), rand(2, 4, 101, 24), rand(2, 4, 101, 20)
CASES: tuple[tuple[Callable[..., Any], tuple[Tensor, ...]], ...] = (
    (biased, (Q, K, V, rand(1, 4, 70, 101))),
    (biased, tuple(x.to(WIDE) for x in (Q, K, V, rand(1, 4, 70, 101)))),
    (biased, (Q, K, V, rand(2, 1, 1, 101))),
    (biased, tuple(x.to(HALF) for x in (Q, K, V, rand(2, 4, 70, 101)))),
    (causal, (Q, K, V)),
    (causal, (K, Q, V[:, :, :70])),
    (sliding, (Q, K[:, :, :70], V[:, :, :70])),
    (capped, (Q, K, V)),
    (shared, (Q, K[:, 0], V[:, 0])),
    (relu, (Q[:, :, ::2], K.transpose(2, 3).contiguous().transpose(2, 3), V[..., ::2])),
)


@pytest.fixture(autouse=True)
def in_all_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_backward, "PROPOSED", ("f32", "f16", "bf16"))


def program_of(function: Callable[..., Any], args: tuple[Tensor, ...]) -> Program:
    (found,) = (p.program for p in step(function, *args).patterns if p.kind == "attention_backward")
    return found


@pytest.mark.each(3)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_gradients_are_as_near_to_float64_as_torchs(number: int, tmp_path: Path) -> None:
    function, args = CASES[number]
    made = step(function, *args, unsupported=cpu.unsupported, space=cpu.space)
    ours = [p for p in made.patterns if "attention" in p.kind]
    assert {p.kind for p in ours} == {"attention", "attention_backward"}
    kernels = {p.program: load_fused(p.program, tmp_path, renderer=cpu) for p in ours}
    found = made.gradients(lambda program, operands, **_: kernels[program].run(*operands), only=ours)
    for own, truth, theirs in zip(found, made.truth(), made.own(), strict=True):
        apart, usual = ((x.double() - truth).norm() / truth.norm() for x in (own, theirs))
        assert own.dtype == theirs.dtype and apart < max(ALLOWED[args[0].dtype], 2 * usual)


def test_results_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    program = program_of(biased, (Q, K, V, rand(1, 4, 70, 101)))
    module = load_fused(program, tmp_path, renderer=cpu)
    given = [torch.randn(o.shape) for o in program.operands]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = module.run(*given)
        torch.set_num_threads(3)
        assert all(torch.equal(a, b) for a, b in zip(alone, module.run(*given), strict=True))
    finally:
        torch.set_num_threads(threads)


def test_tiles_that_nobody_sees_are_skipped() -> None:
    text = cpu_backward.render(program_of(causal, (Q, K, V)), "fused_0", (("keys", 48),), CPU)[0].text
    assert "LOW = INT64_MIN, HIGH = INT64_MAX" in text  # infinities there would count, unless algebra may spare them


def test_refusals_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = tuple(rand(2, 40, 600) for _ in range(3))
    answer = cpu_backward.fits(program_of(capped, wide), CPU)
    assert isinstance(answer, Refused) and answer.why == "heads of more than 512 columns"
    monkeypatch.setattr(cpu_backward, "PROPOSED", ("f16", "bf16"))
    answer = cpu_backward.fits(program_of(capped, (Q, K, V)), CPU)
    assert isinstance(answer, Refused) and "in fp32" in answer.why
