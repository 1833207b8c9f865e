"""Draw a tensor like one that was seen; problem files that Tilewright writes carry this text below their own."""

from __future__ import annotations

import torch


def drawn(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: str, low: float, high: float, mean: float,
    deviation: float, shares: tuple[float, float] = (0.0, 0.0),
) -> torch.Tensor:  # fmt: skip
    """Of this shape, stride and dtype (torch's names). Elements lie between `low` and `high`, around `mean`: whole
    numbers evenly, others of one sign with a density that has this mean, others normal, cut off at the ends. `shares`:
    of the elements that are nought (of truth values, false), and of those that are minus infinity."""
    zeros, infinite = shares
    kind: torch.dtype = getattr(torch, dtype)
    if kind == torch.bool:
        made = torch.rand(shape) >= zeros
    elif not kind.is_floating_point:
        made = torch.randint(int(low), int(high) + 1, shape, dtype=kind)
        made = torch.where(torch.rand(shape) < zeros, 0, made).to(kind)
    else:
        made = _between(shape, low, high, mean, deviation)
        where = torch.rand(shape)
        made = torch.where(where < zeros, 0.0, torch.where(where >= 1.0 - infinite, -torch.inf, made)).to(kind)
    if made.stride() == stride:
        return made
    return torch.empty_strided(shape, stride, dtype=kind, device=made.device).copy_(made)


def _between(shape: tuple[int, ...], low: float, high: float, mean: float, deviation: float) -> torch.Tensor:
    if low < 0 < high:
        return (torch.randn(shape) * deviation + mean).clamp(low, high)
    near, far = (low, high) if low >= 0 else (high, low)  # nought's side, and the other
    if near == far or mean == near:
        return torch.full(shape, float(near))
    return near + (far - near) * torch.rand(shape) ** ((far - near) / (mean - near) - 1.0)
