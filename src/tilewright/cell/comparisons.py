"""Outputs that are booleans because two values were compared: where these are equal but for rounding, either is right.

While the module runs in float64, `Watch` keeps what every comparison by order was given. Where an output is what one of
them gave, or its opposite, `judge` tells how far apart the two values lie at the elements that differ. Where they are
equal, nothing was rounded to make them so: there only one answer is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .wire import Attained

_COMPARISONS = ("gt", "ge", "lt", "le")
_RECTIFIED = ("relu", "clamp", "clamp_min")
_MOST_OWN = 2.0**-6  # twice that is the worst of bf16: a reference that overflows shall not open all elements
_MOST_NEAR = 1 / 128  # of the elements: where more lie that near, the typical size is not theirs, but a mask's filling


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left` against `right`, which gave `after`; as they were then."""

    left: Tensor
    right: Tensor | float
    after: Tensor


class Watch(TorchDispatchMode):
    """Keeps every comparison by order that gave `size` booleans and in which a float took part."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size = size
        self._before_rectified: Tensor | None = None  # of the last of that size
        self.found: list[Comparison] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = getattr(getattr(func, "overloadpacket", None), "__name__", "").removesuffix("_")
        if op in _RECTIFIED and args[0].numel() == self._size:
            self._before_rectified = args[0].clone()
        if op not in _COMPARISONS:
            return func(*args, **(kwargs or {}))
        left, right = args[0].clone(), args[1].clone() if isinstance(args[1], Tensor) else args[1]
        result = func(*args, **(kwargs or {}))
        if result.numel() == self._size and any(isinstance(t, Tensor) and t.is_floating_point() for t in (left, right)):
            self.found.append(Comparison(self._unrectified(op, left, right), right, result != 0))
        return result

    def _unrectified(self, op: str, left: Tensor, right: Tensor | float) -> Tensor:
        """What lies above nought after relu did so before, and there it shows by how much it did not."""
        before = self._before_rectified
        above_nought = op in ("gt", "le") and not isinstance(right, Tensor) and right == 0
        if above_nought and before is not None and before.shape == left.shape:
            return before if _same(before.clamp(min=0), left) else left
        return left


def judge(found: list[Comparison], truth: Tensor, *, got: Tensor, own: Tensor, dtype: torch.dtype) -> Attained:
    """How far apart the values lie where `got`, or the reference's `own`, is not what they give, relative to the larger
    or to their typical distance; `dtype`: what the module computes in. Of several comparisons that gave the `truth`,
    the strictest answer to each question counts, since any of them may be the one."""
    flat = truth.reshape(-1)
    fitting = [c for c in found if torch.equal(c.after.reshape(-1), flat) or torch.equal(~c.after.reshape(-1), flat)]
    answers = [_judged(c, flat, got=got.reshape(-1), own=own.reshape(-1), dtype=dtype) for c in fitting]
    return Attained(
        known=bool(answers), valid=all(a.valid for a in answers), exact=any(a.exact for a in answers),
        shortfall=max((a.shortfall for a in answers), default=0.0),
        own_shortfall=min((a.own_shortfall for a in answers), default=0.0),
    )  # fmt: skip


def _judged(comparison: Comparison, truth: Tensor, *, got: Tensor, own: Tensor, dtype: torch.dtype) -> Attained:
    operands = (comparison.left, comparison.right)
    left, right = (torch.as_tensor(t, dtype=torch.float64, device=truth.device) for t in operands)
    left, right = (t.reshape(-1) for t in torch.broadcast_tensors(left, right))
    apart = (left - right).abs()
    open_to = torch.isfinite(apart) & (apart > 0)
    finite = apart[torch.isfinite(apart)]
    typical = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    apart = apart / torch.maximum(left.abs(), right.abs()).clamp(min=max(typical, 5e-324))
    mine, theirs = (got != truth) & (got != own), (own != truth) & open_to
    shortfall, own_shortfall = (float(apart[at & open_to].max()) if bool((at & open_to).any()) else 0.0
                                for at in (mine, theirs))  # fmt: skip
    near = int((open_to & (apart <= shortfall)).sum())
    return Attained(
        known=True, valid=not bool((mine & ~open_to).any()) and near <= 1 + _MOST_NEAR * truth.numel(),
        exact=all(_given(t, dtype) for t in operands if isinstance(t, Tensor)), shortfall=shortfall,
        own_shortfall=min(own_shortfall, _MOST_OWN),
    )  # fmt: skip


def _given(operand: Tensor, dtype: torch.dtype) -> bool:
    """Whether the module's type holds all of it exactly, as it does inputs."""
    return not operand.is_floating_point() or _same(operand.to(dtype).to(operand.dtype), operand)


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
