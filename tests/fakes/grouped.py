"""Functions whose product is reduced in groups of its columns, or whose rows are one group, with arguments: what tests
match, compile and run."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


M, N, K = 200, 384, 520
A, W, B, SCALE, SHIFT = rand(M, K) / 20, rand(N, K), rand(N), rand(N), rand(N)


TALL = rand(8999, K) / 20  # of so few columns it is not cut along K


def hidden(*shape: int) -> Tensor:
    """A mask to be added: minus infinity for a third of each row."""
    return torch.where(rand(*shape) > 0.43, -inf, 0.0)


def swish_norm(a: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    y = F.linear(a, w, b)
    return F.group_norm(y * torch.sigmoid(y), 24, scale, shift)


def heads(a: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """Each head's own norm, heads in front, as attention has them."""
    y = F.linear(a, w).view(4, 512, 16, 128)
    return F.rms_norm(y, (128,), scale, 1e-6).transpose(1, 2)


GROUPED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "group norm": (swish_norm, (A, W, B, SCALE, SHIFT), 16),
    "heads": (heads, (rand(2048, K) / 20, rand(2048, K), rand(128)), 128),
    "softmax": (lambda a, w: (a @ w.T).view(M, 48, 8).softmax(-1), (A, W), 8),
    "largest of four": (lambda a, w, b: F.linear(a, w, b).view(M, 96, 4).amax(-1).relu(), (A, W, B), 4),
    "means of pairs": (lambda a, w: (a @ w.T).view(M, 192, 2).mean(-1) * 2, (A, W), 2),
    "average pooling": (lambda a, w, b: F.gelu(F.avg_pool1d(F.linear(a, w, b)[:, None], 16)[:, 0]) * 2, (A, W, B), 16),
    "maximum pooling": (lambda a, w: F.max_pool1d((a @ w.T)[:, None], 2)[:, 0], (A, W), 2),
    "residual": (lambda a, w, x: F.layer_norm((a @ w.T + x).view(M, 6, 64), (64,)), (A, W, rand(M, N)), 64),
    "of groups": (lambda a, w, g: ((a @ w.T).view(M, 24, 16) * g).softmax(-1) + g, (A, W, rand(24, 1)), 16),
    "batches": (lambda q, k: (q @ k.transpose(1, 2)).view(8, 136, 16, 16).amax(3),
                (rand(8, 136, 64), rand(8, 256, 64)), 16),
    "rows of 64": (lambda a, w, b: (F.linear(a, w, b) * 0.125).softmax(-1), (TALL, rand(64, K), rand(64)), 64),
    "rows of 100": (lambda a, w, b, s, t: F.gelu(F.layer_norm(F.linear(a.view(-1, 8, K), w, b), (100,), s, t)),
                    (TALL[:8992], rand(100, K), rand(100), rand(100), rand(100)), 100),
    "rows of 99, masked": (lambda a, w, mask: (a @ w.T + mask).log_softmax(-1),
                           (TALL, rand(99, K), hidden(8999, 99)), 99),
}  # fmt: skip
# Rows that fit a tile in 16 bits alone.
WIDE_ROWS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "rows of 10": (lambda a, w, b: F.linear(a, w, b).softmax(-1), (TALL, rand(10, K), rand(10)), 10),
    "rows of 200": (lambda a, w, s: F.silu(F.rms_norm(a @ w.T, (200,), s, 1e-6)).float(),
                    (TALL, rand(200, K), rand(200)), 200),
    "rows of 256": (lambda a, w, b, x, s, t: F.layer_norm(F.linear(a, w, b) + x, (256,), s, t) + x,
                    (TALL, rand(256, K), rand(256), rand(8999, 256), rand(256), rand(256)), 256),
    "rows of batches": (lambda q, k: (q @ k.transpose(1, 2) * 0.125).softmax(-1),
                        (rand(96, 136, 64), rand(96, 256, 64)), 256),
}  # fmt: skip
