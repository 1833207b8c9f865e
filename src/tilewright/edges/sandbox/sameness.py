"""Whether tensors hold the same, bit by bit."""

from __future__ import annotations

import torch
from torch import Tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Bitwise equality of two tensors of one shape, dtype and stride; NaN equals itself. In blocks, to spare memory."""
    flat_a, flat_b = dense(a), dense(b)
    step = 1 << 27
    return all(bool((flat_a[i : i + step] == flat_b[i : i + step]).all()) for i in range(0, flat_a.numel(), step))


def dense(tensor: Tensor) -> Tensor:
    """The elements as a flat tensor of integers, without a copy where they lie densely."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda d: -strides[d])
    flat = tensor.permute(order).reshape(-1)
    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(wide[flat.element_size()])
