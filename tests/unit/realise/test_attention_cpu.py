"""Attention on CPUs, built and run here: against float64 over spellings, odd sizes, types, strides and masks."""

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
from fakes.program_interpreter import GraphRun, view, widened
from fakes.realisers import CPU, cpu
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.fusion.attention import attentions
from tilewright.fusion.region import Flow
from tilewright.realise.attention import cpu as attention
from tilewright.realise.realiser import Refused

ALLOWED = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def pattern_of(function: Callable[..., Any], *args: Tensor) -> Pattern:
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=cpu.unsupported, space=cpu.space)
    (found,) = (p for p in matched.patterns if p.kind == "attention")
    return found


def ran(function: Callable[..., Any], args: tuple[Tensor, ...], folder: Path) -> Tensor:
    """The module with its attention by the kernel, all else by torch in the module's types."""
    pattern = pattern_of(function, *args)
    module = load_fused(pattern.program, folder, renderer=cpu)
    graph = trace(Applies(function), args, {})
    run = GraphRun(graph, Applies(function), patterns=[pattern], exact=False,
                   execute=lambda program, operands, **_: module.run(*operands))  # fmt: skip
    found: Tensor = run(*args)
    return found


def holds(function: Callable[..., Any], args: tuple[Tensor, ...], folder: Path) -> None:
    made, truth = ran(function, args, folder), Applies(function)(*widened(args))
    assert made.dtype == args[0].dtype and made.shape == truth.shape
    finite = truth.isfinite()
    assert torch.equal(made.isfinite(), finite)
    apart, own = ((x.double() - truth)[finite].norm() / truth[finite].norm() for x in (made, function(*args)))
    assert apart < max(ALLOWED[args[0].dtype], 2 * own)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT * 0.3 + bias).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT * 0.3).masked_fill(mask, -math.inf).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return torch.where(kept, q @ k.mT * 0.3, -math.inf).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT / 5).tanh() * 5).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return made.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    apart = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
    return (q @ k.mT * 0.3 + slopes[:, None, None] * apart).softmax(-1) @ v


def relu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / k.shape[-2]).relu() @ v


def sunk(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = q @ k.mT * 0.3
    joined = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return joined.softmax(-1)[..., :-1] @ v


def relu_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2]))
    return F.relu((q @ k.mT * 0.3).masked_fill(kept == 0, -math.inf)) @ v


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(q @ k.mT * 0.3 - math.log(k.shape[-2])) @ v


def segments(q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor) -> Tensor:
    alike = of_queries[:, None, :, None] == of_keys[:, None, None, :]
    return (q @ k.mT * 0.3).masked_fill(~alike, -math.inf).softmax(-1) @ v


HALF, WIDE = torch.float16, torch.bfloat16
Q, K, V = rand(2, 4, 70, 24), rand(2, 4, 101, 24), rand(2, 4, 101, 20)
CASES: tuple[tuple[Callable[..., Any], tuple[Tensor, ...]], ...] = (
    (plain, (Q, K, V)),
    (plain, tuple(x.to(WIDE) for x in (Q, K, V))),
    (plain, (Q[:, :, ::2], K.transpose(2, 3).contiguous().transpose(2, 3), V[..., ::2])),
    (biased, (Q, K, V, rand(4, 70, 101))),
    (biased, (*(x.to(HALF) for x in (Q, K, V)), rand(2, 1, 1, 101, dtype=HALF))),
    (masked, (Q, K, V, rand(70, 101) > 1)),
    (masked, (Q, K, V, (rand(70, 101) > 1) | (torch.arange(70) == 3)[:, None])),  # a row that sees nothing
    (causal, (Q, K, V)),
    (causal, (K, Q, V[:, :, :70])),
    (capped, (Q, K, V)),
    (grouped, (Q, K[:, :2], V[:, :2])),
    (alibi, (Q, K, V, rand(4))),
    (relu, (Q, K, V)),
    (relu_causal, (Q, K, V)),
    (sigmoid, (Q, K, V)),
    (sunk, (Q, K, V, rand(4) * 5)),
    (sunk, (*(x.to(WIDE) for x in (Q * 9, K, V)), rand(4, dtype=WIDE) * 5)),
    (segments, (Q, K, V, torch.arange(140).view(2, 70) // 9, torch.arange(202).view(2, 101) // 13)),
    (biased, (*(x.to(WIDE) for x in (Q, K, V)), rand(4, 70, 101, dtype=WIDE))),
    (masked, (rand(2, 64, 32), rand(2, 128, 32), rand(2, 128, 48), rand(64, 128) > 1)),
    (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (Q, K, V, rand(2, 4, 70, 101) > -1)),
    (plain, (rand(67, 130) * 20, rand(300, 130), rand(300, 33))),
)


@pytest.mark.each(4)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_gives_what_float64_gives(number: int, tmp_path: Path) -> None:
    holds(*CASES[number], tmp_path)


def test_every_setting_and_number_of_threads_gives_the_same(tmp_path: Path) -> None:
    pattern = pattern_of(causal, Q, K, V)
    module = load_fused(pattern.program, tmp_path, renderer=cpu)
    operands = [view(x, b, o.shape) for x, b, o in zip(
        (Q, K, V), pattern.matches[0].operands, pattern.program.operands, strict=True)]  # fmt: skip
    before, (first,) = torch.get_num_threads(), module.run(*operands)
    try:
        for keys, threads in ((24, 1), (96, 2), (48, 1)):
            module.configure(keys=keys)
            torch.set_num_threads(threads)
            torch.testing.assert_close(module.run(*operands)[0], first)
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ValueError, match="keys"):
        module.configure(keys=7)


def test_what_is_hidden_is_not_read_where_torchs_own_call_does_not(tmp_path: Path) -> None:
    """Infinities behind a causal mask come to nothing in torch's call, and to NaN in a product that is written out."""
    v = V[:, :, :70].clone()
    v[:, :, 60:] = math.inf

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    args = (Q, K[:, :, :70], v)
    assert ran(call, args, tmp_path)[:, :, :24].isfinite().all()
    made, theirs = ran(causal, args, tmp_path), causal(*args)
    assert torch.equal(made.isfinite(), theirs.isfinite()) and not made.isfinite().all()


def test_refusals_say_why() -> None:
    for args, why in (
        ((Q[:1, :1, :1], K[:1, :1].expand(1, 1, 101, 24), V[:1, :1]), "so small"),
        ((rand(2, 64, 1, 24), rand(2, 64, 101, 24), rand(2, 64, 101, 20)), "a single query"),
        ((rand(40, 520), rand(400, 520), rand(400, 20)), "heads of more than 512"),
    ):
        ((program, _),), _ = attentions(Flow(trace(Applies(plain), args, {})), lambda program: None)
        answer = attention.fits(program, CPU)
        assert isinstance(answer, Refused) and why in answer.why
