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


def in_groups(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """One scale for each row and group of K: (N, groups)."""
    groups = scale.shape[1]
    return F.linear(x, (w.unflatten(1, (groups, -1)).to(x.dtype) * scale[:, :, None]).flatten(1))


def in_groups_beside_rows(x: Tensor, w: Tensor, scale: Tensor, of_row: Tensor) -> Tensor:
    """The same in fp32, and a scale of the row."""
    made = w.float().unflatten(1, (scale.shape[1], -1)) * scale.float()[..., None] * of_row.float()[:, None, None]
    return F.linear(x, made.to(x.dtype).flatten(1))


def groups_from_the_left(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    groups = scale.shape[1]
    return (w.unflatten(1, (groups, -1)).to(x.dtype) * scale[:, :, None]).flatten(1) @ x.t()


def from_the_left(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return (w.to(x.dtype) * scale[:, None]) @ x.t()
