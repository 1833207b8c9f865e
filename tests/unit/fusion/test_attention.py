"""Attention is found from every spelling, says the same as the module in float64, and near misses are left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.matched import fused
from fakes.modules import Applies
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion.attention import attentions
from tilewright.fusion.region import Flow
from tilewright.ir.alone import attention_in
from tilewright.realise.attention.shape import shape_of

pytestmark = pytest.mark.each(2)

B, H, M, N, D, E = 2, 4, 9, 11, 8, 6


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def found(function: Callable[..., Any], *args: Tensor) -> list[Pattern]:
    """The attentions that are found, held against the module in float64 (see `fused`)."""
    return [p for p in fused(function, *args).patterns if p.kind == "attention"]


Q, K, V = rand(B, H, M, D), rand(B, H, N, D), rand(B, H, N, E)


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return (q @ k.transpose(-2, -1) * 0.3).masked_fill(~kept, float("-inf")).softmax(-1) @ v


def sliding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    kept = (j <= i) & (j > i - 4)
    return torch.where(kept, q @ k.transpose(-2, -1), float("-inf")).softmax(-1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    apart = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
    return (q @ k.mT * 0.3 + slopes[:, None, None] * apart).softmax(-1) @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhmd,bhnd->bhmn", q, k)
    power = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("bhmn,bhne->bmhe", power / power.sum(-1, keepdim=True), v)


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads in the batch, as bmm has them, and side by side again."""
    q, k, v = (x.reshape(B * H, *x.shape[2:]) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
    made = torch.bmm(weights, v).view(B, H, M, E)
    return made.transpose(1, 2).reshape(B, M, H * E)


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Grouped heads as transformers' eager attention repeats them."""
    k, v = (x[:, :, None].expand(B, 2, 2, *x.shape[2:]).reshape(B, 4, *x.shape[2:]) for x in (k, v))
    weights = (torch.matmul(q, k.transpose(2, 3)) * 0.5).softmax(-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def sunk(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """As gpt-oss has it: one learned score more a head, whose weight is left out."""
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.5
    scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(B, -1, M, -1)], dim=-1)
    scores = scores - scores.max(dim=-1, keepdim=True).values
    weights = F.softmax(scores, dim=-1, dtype=scores.dtype)
    return torch.matmul(weights[..., :-1], v).transpose(1, 2).contiguous()


def sunk_by_einsum(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """Of (positions, heads, queries' heads of each, columns), masked by a sum."""
    scores = torch.einsum("qhmd,khd->hmqk", q, k) * 0.3
    scores = scores + torch.triu(scores.new_full((M, M), -math.inf), diagonal=1)
    scores = torch.cat([scores, sinks.reshape(2, 2, 1, 1).expand(-1, -1, M, -1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :-1]
    return torch.einsum("hmqk,khd->qhmd", weights, v).reshape(M, -1)


def t5(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """A bias for each head and bucket of distances."""
    apart = torch.arange(N)[None, :] - torch.arange(M)[:, None]
    far = 4 + (apart.abs().float().clamp(min=1).div(4).log() / math.log(4) * 4).long()
    bucket = (apart > 0).long() * 8 + torch.where(apart.abs() < 4, apart.abs(), far.clamp(max=7))
    return (q @ k.mT + F.embedding(bucket, table).permute(2, 0, 1)[None]).softmax(-1) @ v


def swin(q: Tensor, k: Tensor, v: Tensor, table: Tensor, index: Tensor) -> Tensor:
    bias = table[index.view(-1)].view(M, N, -1).permute(2, 0, 1).contiguous()
    return ((q * 0.3) @ k.mT + bias.unsqueeze(0)).softmax(-1) @ v


def segments(q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor) -> Tensor:
    alike = of_queries[:, None, :, None] == of_keys[:, None, None, :]
    return (q @ k.mT * 0.3).masked_fill(~alike, -math.inf).softmax(-1) @ v


def ragged(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(N)[None, None, None] < lengths[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, seen)


def cosine(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    return (scores * scale.clamp(max=4.6).exp()).softmax(-1) @ v


def sdpa(**how: Any) -> Callable[..., Tensor]:
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **how)


@pytest.mark.parametrize(
    ("function", "args", "domain"),
    [
        (written, (Q, K, V), (B, H, M, E)),
        (written, (Q[:, 0], K[:, 0], V[:, 0]), (B, M, E)),
        (written, (Q[:, :, :1], K, V), (B, H, 1, E)),
        (written, (Q[0, 0], K[0, 0], V[0, 0]), (M, E)),
        (causal, (Q, K, V), (B, H, M, E)),
        (sliding, (Q, Q, V[:, :, :M]), (B, H, M, E)),
        (alibi, (Q, K, V, rand(H)), (B, H, M, E)),
        (by_hand, (Q, K, V), (B, H, M, E)),
        (merged, (Q, K, V), (B, M, H, E)),
        (repeated, (Q, K[:, :2], V[:, :2]), (B, M, H, E)),
        (lambda q, k, v: ((q @ k.mT).tanh() * 3).softmax(-1) @ v, (Q, K, V), (B, H, M, E)),
        (lambda q, k, v, b: (q @ k.mT + b).softmax(-1) @ v, (Q, K, V, rand(H, M, N)), (B, H, M, E)),
        (lambda q, k, v, b: (q @ k.mT + b).softmax(-1) @ v, (Q, K, V, rand(B, 1, 1, N)), (B, H, M, E)),
        (lambda q, k, v, m: (q @ k.mT).masked_fill(m, -1e9).softmax(-1) @ v, (Q, K, V, rand(M, N) > 0), (B, H, M, E)),
        (lambda q, k, v: (q @ k.mT / N).relu() @ v, (Q, K, V), (B, H, M, E)),
        (lambda q, k, v: (q @ k.mT - 2).sigmoid() @ v, (Q, K, V), (B, H, M, E)),
        (sunk, (Q, K, V, rand(H)), (B, M, H, E)),
        (sunk_by_einsum, (rand(M, 2, 2, D), rand(M, 2, D), rand(M, 2, E), rand(4)), (M, 2, 2, E)),
        (t5, (Q, K, V, rand(16, H)), (B, H, M, E)),
        (swin, (Q, K, V, rand(50, H), torch.arange(M * N) % 50), (B, H, M, E)),
        (segments, (Q, K, V, torch.arange(M * B).view(B, M) // 4, torch.arange(N * B).view(B, N) // 4), (B, H, M, E)),
        (ragged, (Q, K, V, torch.tensor([3, 7])), (B, H, M, E)),
        (cosine, (Q, K, V, rand(H, 1, 1)), (B, H, M, E)),
        (sdpa(), (Q, K, V), (B, H, M, E)),
        (sdpa(is_causal=True, scale=0.3), (Q, K, V), (B, H, M, E)),
        (sdpa(enable_gqa=True), (Q, K[:, :2], V[:, :2]), (B, H, M, E)),
        (sdpa(), (Q, K, V, rand(B, 1, M, N)), (B, H, M, E)),
        (sdpa(), (Q, K, V, rand(M, N) > -1), (B, H, M, E)),
        (lambda q, k, v: sdpa()(q, k, v).transpose(1, 2).reshape(B, M, H * E), (Q, K, V), (B, M, H, E)),
    ],
)  # fmt: skip
def test_it_is_found_from_every_spelling(function: Any, args: tuple[Tensor, ...], domain: tuple[int, ...]) -> None:
    (pattern,) = found(function, *args)
    assert pattern.program.domain == domain


class Several(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, **how)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return made


@pytest.mark.parametrize("how", [{}, {"bias": False}, {"kdim": 16, "vdim": 16}])
def test_it_is_found_in_multihead_attention(how: dict[str, Any]) -> None:
    module, x = Several(**how).eval(), rand(2, 9, 16)
    names = [name for name, _ in module.named_parameters()]

    def called(x: Tensor, *values: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))
        return made

    (pattern,) = found(called, x, *(p.detach() for p in module.parameters()))
    assert attention_in(pattern.program) is not None and attention_in(pattern.program).keys == 9


def test_heads_are_read_where_they_lay_before_they_were_repeated() -> None:
    (pattern,) = found(repeated, Q, K[:, :2], V[:, :2])
    assert [o.shape for o in pattern.program.operands] == [(B, H, M, D), (B, 2, N, D), (B, 2, N, E)]


def test_heads_that_share_keys_are_the_queries_of_a_single_position() -> None:
    """In decoding, so that a tile of queries is no single row; from torch's call and from repeated heads alike."""
    for function in (repeated, sdpa(enable_gqa=True)):
        (pattern,) = found(function, Q[:, :, :1], K[:, :2], V[:, :2])
        assert pattern.program.domain in ((B, 2, 2, E), (B, 1, 2, 2, E))
        shape = shape_of(pattern.program)
        assert shape is not None and shape.rows == 2 and shape.batches == 2 * B


def test_what_is_copied_between_is_no_kernel_beside_it() -> None:
    matched = fused(repeated, Q, K[:, :2], V[:, :2])
    (whole,) = (p for p in matched.patterns if p.kind == "attention")
    (site,) = whole.matches
    results = {b.node for p in matched.patterns for m in p.matches for b in m.outputs}
    assert results <= {*site.spared, *(b.node for b in site.outputs)}


def with_scores(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.sum()


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def normed_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return (weights * weights) @ v


def unsafe(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """It overflows where a softmax does not."""
    power = (q @ k.mT).exp()
    return power / power.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize("function", [with_scores, twice, over_queries, normed_after, unsafe,
                                      lambda q, k, v: (q @ k.mT) @ v])  # fmt: skip
def test_near_misses_are_left_alone(function: Any) -> None:
    assert not found(function, Q, K, V)


def test_dropout_that_is_active_is_left_alone() -> None:
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    graph = trace(Applies(dropped), (Q, K, V), {})
    found, left = attentions(Flow(graph), lambda program: None)
    assert not found and list(left.values()) == ["attention with dropout: what it draws is torch's own"]


def test_more_scores_than_32_bits_count_are_no_obstacle() -> None:
    """KernelBench's level 3/31: 16384 positions, 8 heads."""
    given = [torch.zeros(1, 8, 16384, 32, device="meta") for _ in range(3)]
    graph = trace(Applies(written), tuple(given), {})
    ((program, _),), _ = attentions(Flow(graph), lambda program: None)
    shape = shape_of(program)
    assert shape is not None and shape.batches * shape.rows * shape.keys == 1 << 31
