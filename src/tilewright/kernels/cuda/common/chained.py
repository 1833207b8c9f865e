"""Two kernels that are one to a caller: the lead, which does nearly all of the work, and another that goes on from some
of its results, which nobody else sees: sums in parts, states of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..rows.kernels import ALIGNED
from ..rows.launch import Fused
from ..rows.plan import Gpu

_LEADS = ("spec", "knobs", "configure", "plan", "compile", "kept", "demand")


class Chained:
    """`lead` is a Fused, or a product's; settings, plan and demand are its own. It gives the first `keeps` results; its
    others are the first operands of `rest`, which gives the further results. `stacked`: they are one tensor, split
    along its first dimension. `first` and `second`: which of the caller's operands each takes; all, and none.

    `aligned`: operands that are not contiguous, or not aligned, are copied first: sums are kept for rows that lie along
    the lanes alone, and wide ones pass through shared memory in vectors."""

    def __init__(
        self, lead: Any, rest: Fused, *, keeps: int = 0, first: Sequence[int] | None = None,
        second: Sequence[int] = (), stacked: bool = False, aligned: bool = False,
    ) -> None:  # fmt: skip
        self.lead, self.rest, self.keeps = lead, rest, keeps
        self.first, self.second = first, second
        self.stacked, self.aligned = stacked, aligned

    def __getattr__(self, name: str) -> Any:
        if name not in _LEADS:
            raise AttributeError(name)
        return getattr(self.lead, name)

    def prepare(self, device: Gpu) -> None:
        """Both, as a Fused's."""
        self.lead.prepare(device)
        self.rest.prepare(device)

    @property
    def objects(self) -> set[Path]:
        found: set[Path] = self.lead.objects | self.rest.objects
        return found

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        given = [operands[i] for i in self.first] if self.first is not None else operands
        made = self.lead(*(map(_in_vectors, given) if self.aligned else given))
        parts = made[self.keeps :]
        if self.stacked:
            (states,) = parts
            parts = states.view(states.shape[0], *self.rest.spec.operands[0].shape).unbind(0)
        return (*made[: self.keeps], *self.rest(*parts, *[operands[i] for i in self.second]))


def _in_vectors(operand: Tensor) -> Tensor:
    """The operand, or a copy: contiguous, from an aligned address on."""
    if operand.is_contiguous():
        return operand.clone() if operand.data_ptr() % ALIGNED else operand
    return operand.contiguous()
