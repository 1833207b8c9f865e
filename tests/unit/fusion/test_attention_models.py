"""Attention is found in models as libraries write them, with heads read and written where projections have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.matched import fused
from tilewright.ir.alone import attention_in
from tilewright.realise.attention.shape import shape_of

B, M, H, D = 6, 10, 4, 8
WIDTH = H * D


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.3


def heads(x: Tensor, count: int = H) -> Tensor:
    return x.view(B, M, count, D).transpose(1, 2)


def vit(x: Tensor, qkv: Tensor, out: Tensor, gate: Tensor) -> Tensor:
    """timm's: one projection for all three, a residual behind a layer scale."""
    q, k, v = F.linear(x, qkv).reshape(B, M, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
    weights = (q * D**-0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
    return x + gate * F.linear((weights @ v).transpose(1, 2).reshape(B, M, WIDTH), out)


def gpt2(x: Tensor, qkv: Tensor, out: Tensor, kept: Tensor) -> Tensor:
    """transformers' eager form: Conv1D, a buffer of truths, the lowest number for what is hidden."""
    q, k, v = map(heads, torch.addmm(x.new_zeros(3 * WIDTH), x.view(-1, WIDTH), qkv).view(B, M, -1).split(WIDTH, dim=2))
    scores = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], D**0.5, dtype=q.dtype)
    scores = torch.where(kept, scores.to(q.dtype), torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype))
    made = torch.matmul(F.softmax(scores, dim=-1).type(v.dtype), v).transpose(1, 2)
    return F.linear(made.reshape(B, M, WIDTH).contiguous(), out)


def bert(x: Tensor, q_w: Tensor, k_w: Tensor, v_w: Tensor, mask: Tensor) -> Tensor:
    """Its mask is 0 and the lowest number, for each key."""
    q, k, v = (F.linear(x, w).view(B, M, H, D).permute(0, 2, 1, 3) for w in (q_w, k_w, v_w))
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D) + mask
    made = torch.matmul(F.dropout(F.softmax(scores, dim=-1), 0.1, training=False), v)
    return made.permute(0, 2, 1, 3).contiguous().view(B, M, WIDTH)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = torch.cat((-x[..., D // 2 :], x[..., : D // 2]), dim=-1)
    return x * cos + half * sin


def llama(x: Tensor, q_w: Tensor, k_w: Tensor, v_w: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions, heads that share keys, a causal mask that is added, softmax in fp32."""
    q, k, v = heads(F.linear(x, q_w)), heads(F.linear(x, k_w), 2), heads(F.linear(x, v_w), 2)
    q, k = (rotated(y, angles.cos(), angles.sin()) for y in (q, k))
    k, v = (y[:, :, None].expand(B, 2, 2, M, D).reshape(B, H, M, D) for y in (k, v))
    mask = torch.triu(torch.full((M, M), FLOOR), diagonal=1)[None, None]
    scores = torch.matmul(q, k.transpose(2, 3)) * D**-0.5 + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().reshape(B, M, -1)


def llama_called(x: Tensor, q_w: Tensor, k_w: Tensor, v_w: Tensor, angles: Tensor) -> Tensor:
    q, k, v = heads(F.linear(x, q_w)), heads(F.linear(x, k_w), 2), heads(F.linear(x, v_w), 2)
    q, k = (rotated(y, angles.cos(), angles.sin()) for y in (q, k))
    k, v = (y[:, :, None].expand(B, 2, 2, M, D).reshape(B, H, M, D) for y in (k, v))
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return made.transpose(1, 2).contiguous().reshape(B, M, -1)


def t5(x: Tensor, q_w: Tensor, k_w: Tensor, v_w: Tensor, table: Tensor) -> Tensor:
    """No scale; a bias of a table, by the distance."""
    q, k, v = (heads(F.linear(x, w)) for w in (q_w, k_w, v_w))
    apart = (torch.arange(M)[None, :] - torch.arange(M)[:, None]).clamp(-8, 7) + 8
    bias = F.embedding(apart, table).permute(2, 0, 1).unsqueeze(0)
    scores = torch.matmul(q, k.transpose(3, 2)) + bias
    weights = F.softmax(scores, dim=-1).type_as(scores)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, -1, WIDTH)


def min_gpt(x: Tensor, qkv: Tensor, kept: Tensor) -> Tensor:
    """KernelBench's level 3/43: a buffer of ones and zeros."""
    q, k, v = map(heads, F.linear(x, qkv).split(WIDTH, dim=2))
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(kept[:, :, :M, :M] == 0, float("-inf"))
    return (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(B, M, WIDTH)


def swin(x: Tensor, qkv: Tensor, table: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """Windows are the batch; every second one has the mask of shifted windows."""
    q, k, v = F.linear(x, qkv).reshape(B, M, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)
    bias = table[index.view(-1)].view(M, M, -1).permute(2, 0, 1).contiguous()
    scores = (q * D**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    scores = scores.view(B // 2, 2, H, M, M) + mask.unsqueeze(1).unsqueeze(0)
    return (scores.view(-1, H, M, M).softmax(-1) @ v).transpose(1, 2).reshape(B, M, WIDTH)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, H, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        made: Tensor = self.attention(x, x, x, need_weights=False, attn_mask=hidden)[0]
        return made


def multihead(x: Tensor, hidden: Tensor, *values: Tensor) -> Tensor:
    module = Several().eval()
    names = [name for name, _ in module.named_parameters()]
    made: Tensor = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, hidden))
    return made


X, SQUARE, TRIPLE = rand(B, M, WIDTH), rand(WIDTH, WIDTH), rand(3 * WIDTH, WIDTH)
THIN, ANGLES = rand(WIDTH // 2, WIDTH), rand(M, D)
LOWER = torch.ones(M, M).tril()
FLOOR = torch.finfo(torch.float32).min


@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("model", "args"),
    [
        (vit, (X, TRIPLE, SQUARE, rand(WIDTH))),
        (gpt2, (X, rand(WIDTH, 3 * WIDTH), SQUARE, LOWER.bool()[None, None])),
        (bert, (X, SQUARE, SQUARE, SQUARE, torch.where(rand(B, 1, 1, M) > -0.3, 0.0, FLOOR))),
        (llama, (X, SQUARE, THIN, THIN, ANGLES)),
        (llama_called, (X, SQUARE, THIN, THIN, ANGLES)),
        (t5, (X, SQUARE, SQUARE, SQUARE, rand(16, H))),
        (min_gpt, (X, TRIPLE, LOWER[None, None])),
        (swin, (X, TRIPLE, rand(50, H), torch.arange(M * M) % 50, torch.where(rand(2, M, M) > 0.4, -100.0, 0.0))),
        (multihead, (X, LOWER == 0, *(p.detach() * 0.5 for p in Several().parameters()))),
    ],
)
def test_it_is_found_in_models_and_heads_are_not_copied(
    model: Callable[..., Tensor], args: tuple[Any, ...]
) -> None:  # fmt: skip
    matched = fused(model, *args)
    (pattern,) = (p for p in matched.patterns if p.kind == "attention")
    shape, item = shape_of(pattern.program), attention_in(pattern.program)
    assert shape is not None and item is not None and item.keys == M and shape.rows == M
    assert shape.row < len(shape.domain) - 2  # heads lie side by side in what is written
    keys = pattern.program.operands[1]
    assert keys.shape[-1] == D and (H not in keys.shape[:-1]) == model.__name__.startswith("llama")
