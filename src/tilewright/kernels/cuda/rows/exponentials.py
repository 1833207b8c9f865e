"""A row's exponentials, kept in a thread's registers from the sweep that sums them to the one that writes their shares.

Those that are taken together are relative to their own maximum, and become shares of the row's sum by one factor."""

from __future__ import annotations

from typing import Any

from ..common import math as m
from ..common.spec import Function, SoftmaxSpec, Spec
from .reducers import Reducer, State

Value = Any


class KeptExponentials:
    """What SoftmaxSpec asks for, of rows that stay in registers. Cells are pairs (step, lane)."""

    def __init__(self, spec: Spec, asked: SoftmaxSpec) -> None:
        self.name, self._asked = asked.name, asked
        self._results = spec.sweeps[asked.sweep].reductions[asked.reduction].results
        self._exp, self._quotient = (m.exp, m.quotient) if asked.exact else (m.approx_exp, m.approx_quotient)
        self._factors: list[Value] = []  # of each batch; its maximum, until `close`
        self._terms: dict[tuple[int, int], tuple[int, Value]] = {}

    def of(self, sweep: int, reduction: int) -> bool:
        return (sweep, reduction) == (self._asked.sweep, self._asked.reduction)

    def keep(
        self, reducer: Reducer, values: list[Value], valid: list[Value] | None, cells: list[tuple[int, int]]
    ) -> State:
        """The state of these values, whose exponentials are kept."""
        state, terms = reducer.exponentials(values, valid, lambda x: self._exp(x, "f32"))
        self._terms |= {cell: (len(self._factors), term) for cell, term in zip(cells, terms, strict=True)}
        self._factors.append(state[0])
        return state

    def close(self, row: dict[str, Value]) -> Function:
        """Of a row whose results are known; afterwards there are shares, for the function that is returned."""
        highest, total = (row[name] for name in self._results)
        by = m.ordinary_divisor(total, "f32")
        self._factors = [self._quotient(self._exp(mine - highest, "f32"), by, "f32") for mine in self._factors]
        return self._asked.final

    def get(self, step: int, lane: int) -> Value:
        batch, term = self._terms[step, lane]
        return term * self._factors[batch]
