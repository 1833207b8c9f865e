"""Layers of few rows with weights of eight bits, as modules spell them: x is (rows, K), w (N, K), scale (N,)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def weight(n: int, k: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers evenly, floats normal."""
    draw = torch.Generator().manual_seed(n)
    if dtype == torch.float8_e4m3fn:
        return (torch.randn(n, k, generator=draw) * 50).clamp(-448, 448).to(dtype)
    low, high = (-128, 128) if dtype == torch.int8 else (0, 256)
    return torch.randint(low, high, (n, k), generator=draw, dtype=dtype)


def rand(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def scaled(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype) * scale[:, None])


def in_fp32(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.silu(F.linear(x, ((w.float() - 3) * scale.float()[:, None]).to(x.dtype)))


def behind(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * scale + 1


def from_the_left(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return (w.to(x.dtype) * scale[:, None]) @ x.t()
