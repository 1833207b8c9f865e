"""The gradients of attention are one Program wherever a step takes them, and say what float64 says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.attention_step import Step, step
from tilewright.fusion.attention_backward import attention_gradients
from tilewright.fusion.region import Flow
from tilewright.ir.alone import attention_backward_in, attention_in

pytestmark = pytest.mark.each(2)

B, H, M, N, D, E = 2, 3, 9, 11, 8, 6


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


Q, K, V = rand(B, H, M, D), rand(B, H, N, D), rand(B, H, N, E)


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT * 0.3 + bias).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return (q @ k.mT * 0.3).masked_fill(~kept, -math.inf).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT / 5).tanh() * 5).softmax(-1) @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhmd,bhnd->bhmn", q, k)
    power = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("bhmn,bhne->bmhe", power / power.sum(-1, keepdim=True), v)


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads in the batch, as bmm has them."""
    q, k, v = (x.reshape(B * H, *x.shape[2:]) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)


def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One head of keys and values for all queries."""
    scores = torch.einsum("bhmd,bnd->bhmn", q, k) * 0.3
    return torch.einsum("bhmn,bne->bhme", scores.softmax(-1), v)


def mapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / k.shape[-2]).relu() @ v


CASES: tuple[tuple[Callable[..., Any], tuple[Tensor, ...]], ...] = (
    (biased, (Q, K, V, rand(B, H, M, N))),
    (biased, (Q, K, V, rand(1, H, M, N))),
    (biased, (Q, K, V, rand(B, 1, 1, N))),
    (biased, tuple(x.bfloat16() for x in (Q, K, V, rand(1, 1, M, N)))),
    (causal, (Q, K, V)),
    (capped, (Q, K, V)),
    (by_hand, (Q, K, V)),
    (merged, (Q, K, V)),
    (shared, (Q, K[:, 0], V[:, 0])),
    (mapped, (Q, K, V)),
)


def has_both(made: Step) -> bool:
    kinds = [p.kind for p in made.patterns]
    return kinds.count("attention") == kinds.count("attention_backward") == 1


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_step_is_found_and_gives_what_float64_gives(number: int) -> None:
    function, args = CASES[number]
    made = step(function, *args)
    assert has_both(made)
    for found, truth in zip(made.gradients(), made.truth(), strict=True):
        torch.testing.assert_close(found, truth)


def test_no_scores_are_saved_or_written() -> None:
    made = step(causal, Q, K, V)
    scores = B * H * M * N
    sizes = {n.name: math.prod(n.shape) for n in made.segment.forward.nodes}
    assert all(sizes[name] < scores for name in made.segment.saved)
    (backward,) = (p.program for p in made.patterns if p.kind == "attention_backward")
    assert all(math.prod(o.shape) < scores for o in (*backward.operands, *backward.outputs))
    (forward,) = (p.program for p in made.patterns if p.kind == "attention")
    item = attention_in(forward)
    assert item is not None and item.logsum and forward.outputs[1].shape == (B, H, M, 1)


def test_gradients_of_broadcast_operands_are_summed_in_the_program() -> None:
    made = step(biased, Q, K, V, rand(1, H, M, 1))
    (backward,) = (p.program for p in made.patterns if p.kind == "attention_backward")
    item = attention_backward_in(backward)
    assert item is not None
    assert [o.shape for o in backward.outputs] == [(B, H, M, D), (B, H, N, D), (B, H, N, E), (1, H, M, 1)]


def test_where_gradients_are_refused_the_products_stay_as_they_were() -> None:
    def refused(program: Any) -> str | None:
        return "not here" if attention_backward_in(program) else None

    made = step(capped, Q, K, V, unsupported=refused)
    assert not any("attention" in p.kind for p in made.patterns)
    whole = step(capped, Q, K, V)
    found, left = attention_gradients(Flow(whole.segment.backward), refused)
    assert not found and set(left.values()) == {"not here"}


def test_weights_that_are_read_elsewhere_too_stay_in_memory() -> None:
    def kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    assert not any("attention" in p.kind for p in step(kept, Q, K, V).patterns)
