"""The precision contract, held against one result: its errors beside what is allowed, and on appeal the budget of each
element.

A result appeals where it breaks the plain contract, and is made to where it holds that by an allowance that another
part of the output has earned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from ...facts.outcome import OutputError
from ...facts.problem import Precision
from ..memory.case_memory import CaseMemory
from ..wire import messages as wire
from . import metric
from .locate import located
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
