"""What the judge asks before it refuses an output for its values: how sensitive the truth is, what an index attains,
which neighbours a rounding leaves open, what a comparison of near values does.

All run the module in float64 once more, so they are asked for where a comparison failed, and cost nothing elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import comparisons, indices, roundings
from .reference import Reference
from .wire import Amplified, Attained

_STEP = 2.0**-23  # an fp32 unit in the last place
_NORM_OF_JITTER, _MOST_OF_JITTER = 0.289, 0.5  # of a step: root mean square and largest of uniform noise
_DRAWS = 5  # one number that all rests on may hardly move in one of them
_MOST_BY_PARAMETERS = 64.0  # a difference of two weights, which torch computes exactly, shall not hide a lower class
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def amplified(
    reference: Reference, args: str, inputs: Sequence[Tensor], truths: Sequence[Tensor], *, seed: int
) -> Amplified:
    """How each output's truth moves when every floating input is off by up to half of `_STEP`, per such a step; or,
    where that is more (up to _MOST_BY_PARAMETERS), when parameters are off, too: of what is a bias alone."""
    source = torch.Generator(device=inputs[0].device if inputs else "cpu").manual_seed(seed)
    found = reference.truth(args, [_jittered(t, source) for t in inputs], seed)
    most = _times(found, truths)
    for draw in range(_DRAWS):
        found = reference.truth(args, inputs, seed, moved_by=_NORM_OF_JITTER * _STEP, draw=draw)
        most = tuple(
            (max(norm, min(n, _MOST_BY_PARAMETERS)), max(worst, min(w, _MOST_BY_PARAMETERS)))
            for (norm, worst), (n, w) in zip(most, _times(found, truths), strict=True)
        )
    return Amplified(norm=tuple(norm for norm, _ in most), worst=tuple(worst for _, worst in most))


def _times(moved: Sequence[Tensor], truths: Sequence[Tensor]) -> tuple[tuple[float, float], ...]:
    """The distances (norm, worst element) of each output, in steps of the jitter."""
    pairs = (_distance(m, t) if m.shape == t.shape else (0.0, 0.0) for m, t in zip(moved, truths, strict=True))
    return tuple((norm / (_NORM_OF_JITTER * _STEP), worst / (_MOST_OF_JITTER * _STEP)) for norm, worst in pairs)


def _jittered(tensor: Tensor, source: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    noise = torch.rand(tensor.shape, generator=source, device=tensor.device, dtype=torch.float64).sub_(0.5)
    return tensor.double() * noise.mul_(_STEP).add_(1.0)


def _distance(moved_to: Tensor, truth: Tensor) -> tuple[float, float]:
    """Norm and worst element as in the contract, over the positions where both are finite."""
    if not truth.is_floating_point():
        return 0.0, 0.0
    both = torch.isfinite(truth) & torch.isfinite(moved_to)
    at, by = torch.where(both, truth, 0.0).double(), torch.where(both, moved_to - truth, 0.0).double()
    size = float(at.norm())
    if size == 0.0 or at.numel() == 0:
        return 0.0, 0.0
    typical = size / math.sqrt(max(int(both.sum()), 1))
    return float(by.norm()) / size, float((by.abs() / at.abs().clamp(min=typical)).max())


def attained(
    reference: Reference, args: str, inputs: Sequence[Tensor], *, output: int, got: Tensor, own: Tensor, seed: int
) -> Attained:
    """Whether `got` may stand for an output of indices, of rounded numbers, or of what a comparison gave: see
    cell.indices, cell.roundings and cell.comparisons."""
    dtype = next((d for d in _FLOATS if any(t.dtype == d for t in inputs)), torch.float64)
    if got.dtype == torch.bool:
        with comparisons.Watch(got.numel()) as compared:
            found = reference.truth(args, inputs, seed)
        return comparisons.judge(compared.found, found[output], got=got, own=own, dtype=dtype)
    with indices.Watch(got.numel()) as choices, roundings.Watch(got.numel()) as rounded:
        found = reference.truth(args, inputs, seed)
    if got.dtype in (torch.int64, torch.int32):
        answer = indices.judge(choices.choices, found[output], got=got, own=own, dtype=dtype)
        if answer.known:
            return answer
    return roundings.judge(rounded.found, found[output], got=got, own=own)
