"""Functions whose product is reduced in groups of its columns, with arguments: what tests match, compile and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


M, N, K = 200, 384, 520
A, W, B, SCALE, SHIFT = rand(M, K) / 20, rand(N, K), rand(N), rand(N), rand(N)


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
}  # fmt: skip
