"""How operands of a product lie in memory, and what of that its kernels are compiled for."""

from __future__ import annotations

import torch
from torch import Tensor

from ..prologue.fused import PrologueFactor, still
from .compiling import Walk
from .recorded import is_aligned


def vector_of(columns: int) -> int:
    """Of how many elements the start of each row of C is a multiple: 1, 2, 4, or 8, as far as is of use."""
    return next(n for n in (8, 4, 2, 1) if columns % n == 0)


def major_of(x: Tensor) -> str:
    """ "k" where the second mode is contiguous, else "r"."""
    return "r" if x.stride(0) == 1 and (x.stride(1) != 1 or x.shape[1] == 1) and x.shape[0] > 1 else "k"


def up(n: int, multiple: int) -> int:
    """The next whole multiple."""
    return -(-n // multiple) * multiple


def empty_planes(x: Tensor | PrologueFactor, planes: int, dtype: torch.dtype, *, along: bool = False) -> Tensor:
    """(rows, k, batch x planes) for x of (rows, k, batch), lines starting at multiples of 16 bytes; they lie as x does,
    or `along` K."""
    rows, k, batch = x.shape
    if along or (x.major if isinstance(x, PrologueFactor) else major_of(x)) == "k":
        wide = up(k, 8)
        return torch.empty_strided((rows, k, batch * planes), (wide, 1, rows * wide), dtype=dtype, device=x.device)
    wide = up(rows, 8)
    return torch.empty_strided((rows, k, batch * planes), (1, wide, k * wide), dtype=dtype, device=x.device)


def lines(x: Tensor, multiple: int) -> bool:
    """Whether one mode is contiguous, and all lines and matrices start at multiples of so many elements."""
    line, pitch = (0, 1) if major_of(x) == "r" else (1, 0)
    apart = [x.stride(d) for d in (pitch, 2) if x.shape[d] > 1]
    aligned = all(s > 0 and s % multiple == 0 for s in apart) and is_aligned(x)
    return aligned and (x.stride(line) == 1 or x.shape[line] == 1)


def tidied(x: Tensor, multiple: int) -> Tensor:
    """The same, with strides that keep what `lines` says also where a size of 1 leaves them to anybody's guess."""
    line = 0 if major_of(x) == "r" else 1
    return x.as_strided(x.shape, [1 if d == line else x.stride(d) if x.shape[d] > 1 else multiple for d in range(3)])


def broadcast(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """An epilogue's operand over (batch, rows, columns), as (rows, columns, batch); it moves along no size of 1."""
    return still(x.expand(shape).permute(1, 2, 0))


def along_k(x: Tensor) -> Tensor:
    """(rows, k, batch), copied to lie along K."""
    return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def walk_of(x: Tensor) -> Walk:
    """What a kernel is compiled for: addresses that are known to be neighbours take no registers, and aligned ones are
    read two at a time."""
    strides = x.stride()
    wide = strides[1] == 1 and not any(s % 8 for s in (strides[0], strides[2])) and is_aligned(x)
    return tuple(s if s in (0, 1) else None for s in strides), wide
