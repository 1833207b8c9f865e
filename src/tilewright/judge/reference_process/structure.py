"""Structure of inputs: what a problem's own distribution promises of them, which other distributions must keep.

A triangular factor, a symmetric matrix, a mask, probabilities: a candidate may rely on what the problem file draws
every time. What is promised is read off two own draws, and enforced on whatever is drawn instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

NOT_NEGATIVE = "not negative"
SYMMETRIC = "symmetric"
_FEW_VALUES = 16
_LOOK = 1 << 16  # elements looked at to count distinct values
_MIN_ELEMENTS = 64  # among fewer, coincidence proves nothing
_MOST_ELEMENTS = 1 << 26
_MODERATE = 8.0  # exponents up to which a softmax keeps all its terms


@dataclass(frozen=True, slots=True)
class Structure:
    """What holds of one tensor in every own draw. `keeps_own`: only values of its own make sense (labels, masks,
    whole numbers). `fixed`: places that hold the same value each time. `forms`: names in FORMS."""

    keeps_own: bool = False
    fixed: Tensor | None = None
    forms: tuple[str, ...] = ()

    def without(self, form: str) -> Structure:
        return replace(self, forms=tuple(f for f in self.forms if f != form))

    @property
    def goes_on(self) -> bool:
        """Whether a tensor that repeats its own draws promises what they do: a triangle that is repeated is none."""
        return not self.keeps_own and self.fixed is None

    def suits(self, part: Tensor) -> bool:
        """Whether a tensor of this shape can have the forms."""
        return SYMMETRIC not in self.forms or part.shape[-1] == part.shape[-2]

    def reshaped(self, part: Tensor) -> Tensor:
        """A part of an own draw, with the forms that the whole had."""
        for form in self.without(NOT_NEGATIVE).forms:
            part = FORMS[form].enforce(part)
        return part

    def enforce(self, drawn: Tensor, own: Tensor) -> Tensor:
        """`drawn`, which is a fresh tensor, with what `own` promises."""
        if self.keeps_own:
            return own
        for form in self.forms:
            drawn = FORMS[form].enforce(drawn)
        kept = ~torch.isfinite(own) if self.fixed is None else self.fixed | ~torch.isfinite(own)
        return torch.where(kept, own, drawn) if bool(kept.any()) else drawn


@dataclass(frozen=True, slots=True)
class StructureForm:
    holds: Callable[[Tensor], bool]
    enforce: Callable[[Tensor], Tensor]


def structure_of(first: Tensor, second: Tensor) -> Structure:
    """What two own draws of a floating tensor have in common."""
    if first.numel() < _MIN_ELEMENTS or first.shape != second.shape:
        return Structure()
    if _few_values(first) or (_whole(_part(first)) and _whole(_part(second))):
        return Structure(keeps_own=True)
    fixed = first == second
    share = int(fixed.count_nonzero()) / fixed.numel()
    parts = _part(first), _part(second)
    forms = tuple(n for n, f in FORMS.items() if all(f.holds(p) for p in parts))
    return Structure(keeps_own=share == 1.0, fixed=fixed if share > 1e-3 else None, forms=forms)


def _part(tensor: Tensor) -> Tensor:
    """The first rows of what is too large to look at as a whole."""
    rows = max(1, _MOST_ELEMENTS * tensor.shape[0] // tensor.numel()) if tensor.ndim > 2 else tensor.shape[0]
    return tensor[:rows] if tensor.numel() > _MOST_ELEMENTS else tensor


def _few_values(tensor: Tensor) -> bool:
    """Whether elements take very few values: masks, signs, one-hot rows. A triangle's zeros are not among them."""
    sample = tensor.reshape(-1)[:: max(1, tensor.numel() // _LOOK)]
    return int(torch.unique(sample).numel()) <= _FEW_VALUES


def _whole(tensor: Tensor) -> bool:
    return bool((tensor == tensor.round()).all())


# ---- forms ----------------------------------------------------------------------------------------------------------


def _is_symmetric(t: Tensor) -> bool:
    return t.ndim >= 2 and t.shape[-1] == t.shape[-2] > 1 and torch.equal(t, t.mT)


def _symmetric(t: Tensor) -> Tensor:
    lower = t.tril()
    return lower + lower.tril(-1).mT


def _is_sorted(t: Tensor) -> bool:
    return t.ndim >= 1 and t.shape[-1] >= 8 and bool((t.diff(dim=-1) >= 0).all())


def order_of(t: Tensor) -> int:
    """1 where elements rise along the last dimension, -1 where they fall, 0 where they do neither, or are all alike."""
    if t.ndim == 0 or t.shape[-1] < 2 or t.numel() == 0:
        return 0
    rises, falls = bool((t[..., 1:] >= t[..., :-1]).all()), bool((t[..., 1:] <= t[..., :-1]).all())
    return 0 if rises == falls else 1 if rises else -1


def _rows_sum_to_one(t: Tensor) -> bool:
    if t.ndim == 0 or t.shape[-1] < 2 or bool((t < 0).any()):
        return False
    return bool(((t.sum(-1, dtype=torch.float64) - 1).abs() < 1e-2).all())


def _probabilities(t: Tensor) -> Tensor:
    return t.double().nan_to_num(0.0).clamp(-_MODERATE, _MODERATE).softmax(-1).to(t.dtype)


def _rows_are_log_probabilities(t: Tensor) -> bool:
    if t.ndim == 0 or t.shape[-1] < 2 or bool((t > 0).any()):
        return False
    return bool((t.double().logsumexp(-1).abs() < 1e-2).all())


def _log_probabilities(t: Tensor) -> Tensor:
    return t.double().nan_to_num(0.0).clamp(-_MODERATE, _MODERATE).log_softmax(-1).to(t.dtype)


def _rows_have_unit_length(t: Tensor) -> bool:
    if t.ndim == 0 or t.shape[-1] < 2:
        return False
    return bool(((t.double().square().sum(-1) - 1).abs() < 1e-2).all())


def _unit_rows(t: Tensor) -> Tensor:
    rows = t.double().nan_to_num(0.0)
    length = rows.norm(dim=-1, keepdim=True)
    return torch.where(length > 0, rows / length, rows.shape[-1] ** -0.5).to(t.dtype)


FORMS: Mapping[str, StructureForm] = {
    SYMMETRIC: StructureForm(_is_symmetric, _symmetric),
    "sorted": StructureForm(_is_sorted, lambda t: t.sort(-1).values),
    "probabilities": StructureForm(_rows_sum_to_one, _probabilities),
    "log probabilities": StructureForm(_rows_are_log_probabilities, _log_probabilities),
    "unit rows": StructureForm(_rows_have_unit_length, _unit_rows),
    NOT_NEGATIVE: StructureForm(lambda t: bool((t >= 0).all()), torch.abs),
}
