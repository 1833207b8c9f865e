"""Where the wrong elements of a result lie, in words: a tail, one tile in several, every eighth column. It is meant for
whoever has to mend a kernel, and costs nothing where results are right."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import metric

_MOST_ELEMENTS = 1 << 29  # a byte each
_MOST_INDICES = 1 << 20
_PERIODS = tuple(sorted({*range(2, 65), *(2**k for k in range(7, 13)), *(3 * 2**k for k in range(5, 11))}))
_MOST_RANGES = 3


def located(
    value: Tensor, truth: Tensor, reference: Tensor, *, allowed: tuple[float, float], slack: Tensor | None
) -> str:
    """How many elements are wrong and by which indices they can be told, for a result that breaks the contract.
    `allowed`: its (norm, worst). Empty where there is nothing to tell: no wrong element, or too many elements."""
    if value.numel() > _MOST_ELEMENTS or value.numel() == 0 or value.is_complex():
        return ""
    try:
        wrong = metric.wrong_elements(value, truth, reference, allowed=allowed, slack=slack)
    except torch.OutOfMemoryError:
        return ""
    count = int(wrong.sum())
    if not count:
        return ""
    share = f"wrong are {count} of {wrong.numel()} elements ({100 * count / wrong.numel():.3g}%)"
    if count == wrong.numel() or wrong.ndim == 0:
        return share if wrong.ndim == 0 else f"all {count} elements are wrong"
    hit = [_hit(wrong, dim) for dim in range(wrong.ndim)]
    told = [f"dimension {d} {text}" for d, h in enumerate(hit) if (text := _indices(h))]
    if not told:
        return share
    among = math.prod(len(h) if bool(h.all()) else int(h.sum()) for h in hit)
    which = "all" if among == count else f"{count / among:.2g} of those"
    return f"{share}: {which} with {' and '.join(told)}"


def _hit(wrong: Tensor, dim: int) -> Tensor:
    """By index along a dimension, on the CPU: whether anything is wrong there."""
    other = [d for d in range(wrong.ndim) if d != dim]
    return (wrong.any(dim=other) if other else wrong).cpu()


def _indices(hit: Tensor) -> str:
    """Which indices are hit; empty where all are, or where they have no form that is worth telling."""
    size, count = len(hit), int(hit.sum())
    if count == size or size > _MOST_INDICES:
        return ""
    found = _ranges(hit)
    if len(found) <= _MOST_RANGES:
        return "at " + ", ".join(_range(a, b, size) for a, b in found)
    for period in _PERIODS:
        if 2 * period > size:
            break
        rest = hit[: size // period * period].view(-1, period)
        one = rest[0]
        same = bool((rest == one).all()) and bool((hit[size // period * period :] == one[: size % period]).all())
        parts = _ranges(one) if same else []
        if same and len(parts) <= _MOST_RANGES:
            return f"modulo {period} at " + ", ".join(_range(a, b, period) for a, b in parts)
    return f"at {count} of {size} indices"


def _ranges(hit: Tensor) -> Sequence[tuple[int, int]]:
    """The runs of indices that are hit, each with its end."""
    edges = torch.diff(
        hit.to(torch.int8), prepend=torch.zeros(1, dtype=torch.int8), append=torch.zeros(1, dtype=torch.int8)
    )
    begins, ends = (edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist()
    return list(zip(begins, ends, strict=True))


def _range(begin: int, end: int, size: int) -> str:
    if end - begin == 1:
        return str(begin)
    return f"{begin} to {end - 1}" + (f" (the last {end - begin} of {size})" if end == size and begin else "")
