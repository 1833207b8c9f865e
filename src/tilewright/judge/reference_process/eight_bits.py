"""Floats of eight bits: torch computes next to nothing with them."""

from __future__ import annotations

import torch
from torch import Tensor


def computable(tensor: Tensor) -> Tensor:
    """The same, in fp32 where torch computes nothing with its type: all floats of eight bits."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def within(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in this type of eight bits; what is too large for it becomes its largest number."""
    most = torch.finfo(dtype).max
    return torch.where(tensor.isfinite(), tensor.clamp(-most, most), tensor).to(dtype)


def ordered(tensor: Tensor) -> Tensor:
    """Flat: the elements, or of floats of eight bits the place of each in the order of all (int16), whose neighbours
    differ by one; NaN, of either sign, lies past the largest."""
    flat = tensor.reshape(-1)
    if not flat.is_floating_point() or flat.element_size() > 1:
        return flat
    bits = flat.contiguous().view(torch.uint8).to(torch.int16)
    places = torch.where(flat.float().isnan(), 128, bits & 127)
    return torch.where(bits > 127, -places, places)
