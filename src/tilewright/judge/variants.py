"""The hidden cases of one judge: variants of its problem's first case, as far as the reference takes them."""

from __future__ import annotations

import random
from collections.abc import Callable

from ..facts.problem import Problem
from .check import hidden
from .client import Cell, CellFault
from .memories import Case
from .wire import messages as wire


class Variants:
    """`describe`: what is known of the case of a number, without its graph."""

    def __init__(self, problem: Problem, describe: Callable[[int], Case], rng: random.Random) -> None:
        self._problem = problem
        self._describe, self._rng = describe, rng
        self._last_number = len(problem.cases) - 1
        self._found: tuple[Case, ...] | None = None

    def forget(self) -> None:
        """Another cell has taken the reference's place, and was told of no hidden case."""
        self._found = None
        self._last_number = len(self._problem.cases) - 1

    def cases(self, known: tuple[Case, ...], reference: Cell) -> tuple[Case, ...]:
        """Beside the `known` cases; looked for once."""
        if self._found is None:
            described = known[0].described
            found: list[Case] = []

            def take(variant: wire.Variant) -> bool:
                case = self._added(variant, reference)
                if case is not None and case.described.inputs not in [c.described.inputs for c in (*known, *found)]:
                    found.append(case)
                return case is not None

            kwargs = self._problem.cases[0]
            if self._problem.target != "cpu" or described.work.bytes_moved < hidden.HOPELESS_BYTES:
                offered = hidden.variants(kwargs, described, sizes=known[0].open, rng=self._rng)
                hidden.offer(offered, found, take=take)
                take(hidden.strided(kwargs, described))
            self._found = tuple(found)
        return self._found

    def _added(self, variant: wire.Variant, reference: Cell) -> Case | None:
        """The variant as one more case; None where the reference does not take it."""
        reference.do(wire.AddCase(base=0, variant=variant))
        self._last_number += 1
        try:
            return self._describe(self._last_number)
        except CellFault as fault:
            if not reference.alive or not fault.by_code:
                raise
            return None
