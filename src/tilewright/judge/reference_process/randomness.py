"""Whether a module draws random numbers: it does where two seeds differ by more than one seed repeated does.

Operations that add in whatever order threads come by differ from call to call, too, and so does what was chosen among
several algorithms: the same under one seed as under two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_CALLS = 4  # of either kind
_MORE = 2.0  # times what a repeated seed makes
_FAR = 0.02  # of the norm: dropout moves far more, the order of a sum far less
_SAMPLE = 1 << 26  # elements of a result that are kept for a comparison
Run = Callable[[int], Sequence[Tensor]]


def is_random(run: Run, seed: int) -> bool:
    """Whether some output of `run(seed)` depends on the seed; every run starts from the same state."""
    first = run(seed)
    repeated = [_distances(first, run(seed)) for _ in range(_CALLS)]
    others = [_distances(first, run(seed + 1 + i)) for i in range(_CALLS)]
    pairs = zip(zip(*repeated, strict=True), zip(*others, strict=True), strict=True)
    return any(min(by_seed) > _MORE * max(by_itself) for by_itself, by_seed in pairs)


def differ(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether two runs differ at all."""
    return len(first) != len(second) or any(d > 0 for d in _distances(first, second))


def far(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether two runs differ by more than another order of summation could explain."""
    if len(first) != len(second):
        return True
    norms = [float(torch.nan_to_num(torch.view_as_real(a) if a.is_complex() else a).double().norm()) for a in first]
    return any(d > _FAR * norm for d, norm in zip(_distances(first, second), norms, strict=True))


def sampled(tensor: Tensor) -> Tensor:
    """The tensor, or evenly spaced elements of a very large one: a second copy of it may not fit."""
    tensor = tensor.detach()
    return tensor if tensor.numel() <= _SAMPLE else tensor.reshape(-1)[:: -(-tensor.numel() // _SAMPLE)].clone()


def _distances(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[float, ...]:
    """By output; infinite where shapes differ."""
    return tuple(_distance(a, b) if a.shape == b.shape else float("inf") for a, b in zip(first, second, strict=True))


def _distance(a: Tensor, b: Tensor) -> float:
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.is_floating_point():
        return float((a != b).sum())
    if a.element_size() == 1:
        a, b = a.float(), b.float()
    strange = (torch.isfinite(a) != torch.isfinite(b)).sum()
    apart = (torch.nan_to_num(a) - torch.nan_to_num(b)).double()
    return float(apart.norm()) + float(strange)
