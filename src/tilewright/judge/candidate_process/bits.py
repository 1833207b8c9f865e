"""The bits of a tensor: words to compare, and a fingerprint to remember what it held."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1 << 24  # words
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}


def words(tensor: Tensor) -> Tensor:
    """The elements in order as a flat tensor of integers, on which equality is bitwise: NaN equals itself. Without a
    copy where the tensor is contiguous and no lazy conjugate or negative."""
    flat = tensor.resolve_conj().resolve_neg().reshape(-1).contiguous()  # a row with a step is flat without a copy
    return flat.view(_WORDS[tensor.element_size()])


def fingerprint(tensor: Tensor) -> int:
    """A number of the contents and their places, the same for the same type, shape and contents. Each place has an odd
    weight of its own, so within a block no change of one word and no exchange of two goes unseen; no copy of the whole
    is made."""
    flat = words(tensor)
    weights = torch.arange(1, 2 * min(_BLOCK, max(flat.numel(), 1)), 2, device=tensor.device)
    total = 0
    for start in range(0, flat.numel(), _BLOCK):
        part = flat[start : start + _BLOCK].to(torch.int64)
        total = (total * 31 + int((part * weights[: part.numel()]).sum())) % (1 << 64)
    return total
