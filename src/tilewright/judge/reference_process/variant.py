"""Variants of a case: the same module at shapes and strides that the problem file does not name.

The sizes of a CASES file's keywords change in the file's own functions; elsewhere what `get_inputs` draws is cut or
repeated along dimensions. Other strides are the same values in memory that is padded or transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..wire.messages import Variant

_PADDING = 3  # elements: no power of two divides the row pitch


def resized(tensors: Sequence[Tensor], variant: Variant) -> list[Tensor]:
    """The tensors with `batch` as first dimension, where they share one, and other extents replaced."""
    found = list(tensors)
    if variant.batch:
        shared = batch_of(found)
        found = [_along(t, 0, variant.batch) if t.ndim and t.shape[0] == shared else t for t in found]
    for old, new in variant.extents:
        for i, tensor in enumerate(found):
            for dim in range(1 if variant.batch else 0, tensor.ndim):
                if tensor.shape[dim] == old:
                    found[i] = tensor = _along(tensor, dim, new)
    return found


def batch_of(tensors: Sequence[Tensor]) -> int:
    """The first dimension of the first tensor that has one."""
    return next((int(t.shape[0]) for t in tensors if t.ndim), 0)


def _along(tensor: Tensor, dim: int, extent: int) -> Tensor:
    places = torch.arange(extent, device=tensor.device) % tensor.shape[dim]
    return tensor.index_select(dim, places)


def restrided(tensor: Tensor, number: int) -> Tensor:
    """The same values where rows are padded, or, every other time, where the last two dimensions are swapped."""
    if tensor.ndim == 0 or tensor.numel() == 0:
        return tensor
    if tensor.ndim >= 2 and number % 2:
        return tensor.mT.contiguous().mT
    wide = tensor.new_zeros((*tensor.shape[:-1], tensor.shape[-1] + _PADDING))
    view = wide[..., 1 : 1 + tensor.shape[-1]] if tensor.ndim >= 2 else tensor.new_zeros(2 * tensor.shape[0])[::2]
    view.copy_(tensor)
    return view


def indexes(tensor: Tensor) -> bool:
    """Whether it may hold places in other tensors."""
    return tensor.ndim > 0 and not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
