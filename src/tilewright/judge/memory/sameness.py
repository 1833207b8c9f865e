"""Whether tensors hold the same, bit by bit, and comparisons in one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def one_thread() -> Iterator[None]:
    """What torch does in the block, on a CPU, is done by the calling thread. Others that help wait for more to do for
    some milliseconds, on a processor; and on a busy machine it takes longer to wait for them than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
