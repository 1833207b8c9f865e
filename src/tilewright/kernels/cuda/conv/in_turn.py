"""Kernels that run one after the other and are one to a caller: each reads what the caller gave, and what those before
it made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..rows.plan import Gpu

_LEADS = ("spec", "knobs", "configure", "plan", "compile", "kept", "demand")
Read = tuple[int, tuple[int, ...]]


class InTurn:
    """`steps`: of each kernel (itself, what it reads); what is read, and what the caller gets, is (number, shape): the
    operands count first, then what the kernels make, in order. The last result of the first kernel, the lead, counts as
    its parts along the first dimension. Settings and demand are the lead's."""

    def __init__(self, steps: Sequence[tuple[Any, Sequence[Read]]], results: Sequence[Read]) -> None:
        self.steps, self.results = steps, results
        self.lead = steps[0][0]

    def __getattr__(self, name: str) -> Any:
        if name not in _LEADS:
            raise AttributeError(name)
        return getattr(self.lead, name)

    def prepare(self, device: Gpu) -> None:
        """All of them, as a Fused's."""
        for kernel, _ in self.steps:
            kernel.prepare(device)

    @property
    def objects(self) -> set[Path]:
        found: set[Path] = set()
        return found.union(*(kernel.objects for kernel, _ in self.steps))

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        values = list(operands)
        for number, (kernel, reads) in enumerate(self.steps):
            made = kernel(*(values[i].reshape(shape) for i, shape in reads))
            values += made if number else (*made[:-1], *made[-1].unbind(0))
        return tuple(values[i].reshape(shape) for i, shape in self.results)
