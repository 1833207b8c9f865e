"""Walks through a block larger than the caches, which evict them, and what a walk that was made must have found.

On a CPU the block is the judge's: sealed shared memory of random whole numbers, no two pages alike, read-only here. A
walk sums each page with signs drawn from its seed, for which it must read all, and tells the sum of a few pages; the
judge sums these few itself. Who puts other pages in their place is found out, and to let pages go brings the same ones
back. On a GPU the block is the cell's: a walk writes a ramp that begins at its seed, and places drawn from it are read
again. Pages that several addresses share would hold what was written last.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = "evicting"  # under which name a cell maps the judge's block
PAGE_WORDS = 1024  # of four bytes
LARGEST = 4096  # of the whole numbers: signed sums of a page stay exact in fp32
SAMPLED_PAGES, SAMPLED_WORDS = 64, 4096
MOST_SEED = 1 << 30
_mv, _arange, _randint, _generator = torch.mv, torch.arange, torch.randint, torch.Generator
_sum: Callable[..., Tensor] = torch.Tensor.sum
_pick = torch.Tensor.index_select


def pages(data: Tensor) -> Tensor:
    """A block's bytes as `walked` takes them."""
    return data.view(torch.float32).view(-1, PAGE_WORDS)


def signs(source: torch.Generator) -> Tensor:
    return _randint(0, 2, (PAGE_WORDS,), generator=source).float() * 2 - 1


def pages_of(source: torch.Generator, block: Tensor) -> Tensor:
    return _randint(0, block.shape[0], (SAMPLED_PAGES,), generator=source)


def walked(block: Tensor, seed: int) -> float:
    """Read the whole block, fp32 of shape (pages, PAGE_WORDS); the sum of the pages that the seed draws."""
    source = _generator().manual_seed(seed)
    drawn, places = signs(source), pages_of(source, block)
    return float(_sum(_pick(_mv(block, drawn), 0, places), dtype=torch.float64))


def words_of(seed: int, words: int) -> Tensor:
    return _randint(0, words, (SAMPLED_WORDS,), generator=_generator().manual_seed(seed))


def overwritten(buffer: Tensor, seed: int) -> float:
    """Write the ramp through all of a GPU's buffer, int32 of one dimension; the sum at the places drawn."""
    _arange(seed, seed + buffer.numel(), out=buffer)
    places = words_of(seed, buffer.numel()).to(buffer.device)
    return float(_sum(_pick(buffer, 0, places), dtype=torch.int64))
