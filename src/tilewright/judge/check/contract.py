"""The precision contract, held against one result: its errors beside what is allowed, and on appeal the budget of each
element.

A result appeals where it breaks the plain contract, and is made to where it holds that by an allowance that another
part of the output has earned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...facts.outcome import OutputError
from ...facts.problem import Precision
from ..memory.case_memory import CaseMemory
from ..wire import messages as wire
from . import metric
from .plan import OWN, SPECIALS, Trial

OwnErrors = Mapping[tuple[int, str, int], tuple[float, float]]
_NO_BUDGET = "the budget of each element could not be had, so the plain contract decides"


@dataclass(slots=True, kw_only=True)
class Compared:
    """What came of a comparison; `refusal`: reason and summary, empty where the contract is held."""

    errors: list[OutputError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusal: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Of one output."""

    value: Tensor
    truth: Tensor
    own: Tensor
    slack: Tensor | None

    def distance(self) -> metric.Distance:
        with metric.calm(self.value):
            return metric.distance(self.value, self.truth, self.own, self.slack)


class Contract:
    """One case's. `own`: the reference's errors, by case, family and output, as far as they are known."""

    def __init__(self, memory: CaseMemory, *, case: int, precision: Precision, own: OwnErrors) -> None:
        self._memory = memory
        self._case = case
        self._precision: Precision = precision
        self._own = own

    def compare(self, trial: Trial, place: int, what: str = "", *, k: int = 0) -> Compared:
        """Hold the result in `place` against the truth on pool set `k`."""
        memory, compared = self._memory, Compared()
        results = zip(
            memory.results(place), memory.truths.truth(), memory.truths.own(), memory.truths.slack(), strict=True
        )
        outputs = [_Tensors(*tensors) for tensors in results]
        doubtful: dict[int, metric.Distance] = {}
        for i, tensors in enumerate(outputs):
            found = tensors.distance()
            if found.misplaced and trial.family == SPECIALS and not metric.masks_infinity(
                tensors.value, tensors.truth, tensors.own
            ):  # fmt: skip
                found = replace(found, misplaced=0)
                compared.notes.append(f"case {self._case}: what comes of NaN in the inputs differs from the reference")
            compared.errors.append(self._error(trial, i, found))
            if found.misplaced or not holds(compared.errors[i]) or self._spends(tensors):
                doubtful[i] = found
        verdicts = self._appeal(compared, doubtful, place=place, k=k, seed=trial.draws) if doubtful else {}
        for i, verdict in verdicts.items():
            error = compared.errors[i]
            compared.errors[i] = _on_appeal(error, verdict)
            if not verdict.right and not compared.refusal:
                compared.refusal = self._refusal(error, outputs[i], doubtful[i], verdict=verdict, what=what)
        return compared

    def _error(self, trial: Trial, output: int, found: metric.Distance) -> OutputError:
        # The class that the reference has on the problem's main case is what the user runs with: a library that takes
        # a more exact algorithm at another shape or scale asks nothing more of a candidate.
        keys = (self._case, trial.family, output), (0, OWN, output)
        own_norm, own_worst = map(max, zip(*(self._own.get(k, (0.0, 0.0)) for k in keys), strict=True))
        allowed_norm, allowed_worst = metric.allowance(
            self._memory.truths.own()[output].dtype, (own_norm, own_worst), self._precision,
            length=self._memory.described.longest_sum,
        )  # fmt: skip
        return OutputError(
            case=self._case, family=trial.family, output=output, norm=found.norm, worst=found.worst,
            allowed_norm=allowed_norm, allowed_worst=allowed_worst,
        )  # fmt: skip

    def _spends(self, tensors: _Tensors) -> bool:
        """Whether a result within its allowance owes that to another part of the output. Of eight bits no part is so
        large that one step would not be too much for it."""
        dtype = tensors.value.dtype
        if tensors.slack is not None or dtype.itemsize == 1 or not dtype.is_floating_point:
            return False
        floor, _ = metric.floors(dtype, self._precision)
        with metric.calm(tensors.value):
            return metric.is_uneven(tensors.value, tensors.truth, tensors.own, floor=floor)

    def _appeal(
        self, compared: Compared, doubtful: Mapping[int, metric.Distance], *, place: int, k: int, seed: int
    ) -> Mapping[int, wire.Judged]:
        """The verdicts by the budgets of elements; where none can be had, what the plain contract says."""
        least = metric.CLASS_EPS.get(self._precision, 0.0)
        found = self._memory.appeals.appeal(k, tuple(doubtful), place=place, seed=seed, least=least)
        if found.judged:
            compared.notes += [f"case {self._case}: judged {found.note}"] if found.note else []
            return dict(zip(doubtful, found.judged, strict=True))
        why = f"{_NO_BUDGET} ({found.note})"
        compared.notes.append(f"case {self._case}: {why}")
        shares = {i: 0.0 if f.misplaced else compared.errors[i].share for i, f in doubtful.items()}
        return {i: wire.Judged(wrong=f.misplaced, share=shares[i], why=why) for i, f in doubtful.items()}

    def _refusal(
        self, error: OutputError, tensors: _Tensors, found: metric.Distance, *, verdict: wire.Judged, what: str
    ) -> tuple[str, str]:
        title = self._memory.described.title(error.output)
        if tensors.slack is not None and not bool(tensors.value.any()):
            return "no_gradient", f"case {self._case}: the {title}{what} is missing or nought"
        value, plain = tensors.value, (tensors.value, tensors.truth, tensors.own)
        if unwritten := metric.unwritten(value, tensors.truth):
            return "wrong_values", f"case {self._case}, {error.family} inputs, {title}{what}: {unwritten}"
        if found.misplaced and value.dtype.is_floating_point:
            detail = f"{found.misplaced} of {value.numel()} elements are not finite where the truth is, or the reverse"
        elif found.misplaced:
            detail = f"{found.misplaced} of {value.numel()} elements differ"
        else:
            detail = (
                f"norm error {error.norm:.3g} (allowed {error.allowed_norm:.3g}), "
                f"worst {error.worst:.3g} (allowed {error.allowed_worst:.3g})"
            )
        where = located(*plain, allowed=(error.allowed_norm, error.allowed_worst), slack=tensors.slack)
        head = f"case {self._case}, {error.family} inputs, {title}{what}: {detail}"
        return "wrong_values", "; ".join(filter(None, (head, verdict.why, metric.first_difference(*plain), where)))


def holds(error: OutputError) -> bool:
    """Whether both errors stay within what is allowed; NaN does not."""
    return error.norm <= error.allowed_norm and error.worst <= error.allowed_worst


def _on_appeal(error: OutputError, verdict: wire.Judged) -> OutputError:
    """The errors beside what is allowed of them by the budgets of elements."""
    share = max(verdict.share, 1e-9)
    return replace(error, allowed_norm=error.norm / share, allowed_worst=error.worst / share)


# ---- Where the wrong elements of a result lie, in words: a tail, one tile in several, every eighth column. It is
# meant for whoever has to mend a kernel, and costs nothing where results are right.

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
