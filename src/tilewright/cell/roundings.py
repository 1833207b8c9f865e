"""Outputs that are whole numbers because something was rounded to them: next to a tie, both neighbours are right.

While the module runs in float64, `Watch` keeps what every rounding was applied to. Where an output is what one of them
gave (clamped perhaps, and moved by a zero point), `judge` tells how far an element would have had to lie elsewhere
before the rounding for other whole numbers to come of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .wire import Attained

# How far below and above itself what becomes a whole number may lie; towards zero, that depends on its sign.
_REACH = {"round": (0.5, 0.5), "floor": (0.0, 1.0), "ceil": (1.0, 0.0)}
_TOWARDS_ZERO = ("trunc", "_to_copy")


@dataclass(frozen=True, slots=True)
class Rounding:
    op: str
    before: Tensor
    after: Tensor


class Watch(TorchDispatchMode):
    """Keeps every rounding of `size` elements."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size = size
        self.found: list[Rounding] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(getattr(func, "overloadpacket", None), "__name__", "")
        op = name if name == "_to_copy" else name.removesuffix("_")
        if not (op in _REACH or op in _TOWARDS_ZERO) or args[0].numel() != self._size:
            return func(*args, **(kwargs or {}))
        before: Tensor = args[0] if name == op else args[0].clone()
        result = func(*args, **(kwargs or {}))
        floating = before.is_floating_point() and not (kwargs or {}).get("decimals")
        if floating and (op != "_to_copy" or _is_whole(result.dtype)):
            self.found.append(Rounding(op, before, result if name == op else result.clone()))
        return result


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def judge(found: list[Rounding], truth: Tensor, *, got: Tensor, own: Tensor) -> Attained:
    """How far the values that were rounded lie from those that give `got`, and from those that give the reference's
    `own`, relative to themselves or to the typical one; where the `truth` is what one of the roundings gave."""
    for rounding in found:  # the first is the one: what comes after it rounds whole numbers
        placed = _placed(rounding, truth)
        if placed is not None:
            short = [_shortfall(rounding.op, placed, v.double().reshape(placed.shape)) for v in (got, own)]
            return Attained(known=True, valid=True, exact=False, shortfall=short[0], own_shortfall=short[1])
    return Attained(known=False, valid=False, exact=False, shortfall=0.0, own_shortfall=0.0)


def _placed(rounding: Rounding, truth: Tensor) -> Tensor | None:
    """What was rounded, on the scale of the output; None where the output is not what this rounding gave."""
    rows = truth.shape[-1] if truth.ndim and truth.shape[-1] > 1 else max(truth.numel(), 1)
    wanted, after, before = (t.double().reshape(-1, rows) for t in (truth, rounding.after, rounding.before))
    low, high = wanted.min(), wanted.max()
    moved, inside = wanted - after, (wanted > low) & (wanted < high)
    least = torch.where(inside, moved, torch.inf).amin(1, keepdim=True)
    most = torch.where(inside, moved, -torch.inf).amax(1, keepdim=True)
    if not bool((least >= most).all()):
        return None
    shift = torch.where(torch.isfinite(least), least, 0.0)
    if not torch.equal((after + shift).clamp(low, high), wanted):
        return None
    return (before + shift).clamp(low, high)


def _shortfall(op: str, values: Tensor, chosen: Tensor) -> float:
    if op in _REACH:
        below, above = (torch.full_like(chosen, reach) for reach in _REACH[op])
    else:
        below, above = (chosen <= 0).double(), (chosen >= 0).double()
    distance = torch.maximum(chosen - below - values, values - chosen - above).clamp(min=0.0)
    typical = float(values.square().mean().sqrt())
    return float((distance / values.abs().clamp(min=max(typical, 5e-324))).nan_to_num(nan=1e300).max())
