"""Jitter: moving what goes into a step by as much as rounding does, to learn how far its gradients move with it.

A gradient that is right for values within the last bits of those given is right. Where it jumps (relu at nought, ties
in a maximum) or cancels (a small sum of large terms), that is far more than the last bits of the gradient itself, and
two honest computations differ there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# In units of the type's epsilon: twice, or some, of the roundings of a computation that is carried out in it. With
# antithetic draws a switch that lies within a twentieth of that is missed once in twenty times or less.
_UNITS = {8: 8.0, 4: 8.0, 2: 1.0, 1: 1.0}
_MOST = 2.0**-9  # as for TF32, twice
_FLOOR = 0.01  # of the root mean square: what is nought must be moved too


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Every element is moved by about the share `amount` of itself and of `floor` times the root mean square of its
    tensor, each `draw` in its own way. Without a floor small rows beside large ones are moved as little as they are
    rounded."""

    amount: float
    draw: int = 0
    floor: float = _FLOOR


def share(own: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """The relative size of the jitter: the reference's own error in the forward, twice, where that is more than the
    last bits of its type."""
    most = 0.0
    for a, b in zip(own, truth, strict=True):
        if not a.is_floating_point():
            continue
        least = _UNITS[a.element_size()] * torch.finfo(a.dtype).eps
        wide, exact = torch.nan_to_num(a.double()), torch.nan_to_num(b.double())
        error = float((wide - exact).norm()) / max(float(exact.norm()), 1e-300)
        most = max(most, least, min(2 * error, _MOST))
    return most


def moved(tensor: Tensor, by: Jitter, source: torch.Generator) -> Tensor:
    """A float64 tensor, moved; what is not finite, and what is no float, stays."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    finite = torch.isfinite(tensor)
    size = torch.where(finite, tensor, 0.0).abs()
    size += by.floor * float(size.square().mean().sqrt())
    noise = torch.randn(tensor.shape, generator=source, device=tensor.device, dtype=tensor.dtype)
    return torch.where(finite, tensor + by.amount * size * noise, tensor)
