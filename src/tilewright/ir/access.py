"""How a tensor is read: a position for each of its dimensions, counted along the dimensions of an index space.

Plain positions move by steps (windows, strides, dilation, transposes); a Quotient is divided and wraps around
(broadcast batches, grouped-query heads, transposed windows); a GroupIndex is the number of a row's group (ragged
experts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Diagonals = tuple[int | None, int | None]  # the first and the last (column - row) of a matrix; None: no bound
ALL_DIAGONALS: Diagonals = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a dimension is read: at `start` + the sum of step x index over `steps`, pairs of a dimension of the domain
    and a step other than 0, + the whole number `value` (its name; "": none)."""

    start: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    value: str = ""

    def span(self, domain: Sequence[int]) -> tuple[int, int]:
        """The least and the greatest position, `value` aside."""
        ends = [step * (domain[d] - 1) for d, step in self.steps]
        return self.start + sum(e for e in ends if e < 0), self.start + sum(e for e in ends if e > 0)

    def surely_inside(self, size: int, domain: Sequence[int]) -> bool:
        low, high = self.span(domain)
        return not self.value and low >= 0 and high < size


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotient(Position):
    """A Position divided by `each`, rounded down, modulo `wrap` (0: not wrapped): `each` neighbours read the same, and
    behind `wrap` of these all begins anew. `exact`: where the division leaves a remainder nothing is read."""

    each: int
    wrap: int = 0
    exact: bool = False

    def span(self, domain: Sequence[int]) -> tuple[int, int]:
        low, high = (end // self.each for end in Position.span(self, domain))
        return (0, self.wrap - 1) if self.wrap else (low, high)

    def surely_inside(self, size: int, domain: Sequence[int]) -> bool:
        return Position.surely_inside(self, size, domain) and not self.exact


def in_parts(shape: Sequence[int], each: Sequence[int]) -> tuple[Position | Quotient, ...]:
    """Where a tensor is read that is broadcast over parts of dimensions: dimension d at i // each[d] % shape[d]."""
    return tuple(
        Quotient(steps=((d, 1),), each=part, wrap=size) if size > 1 else Position()
        for d, (size, part) in enumerate(zip(shape, each, strict=True))
    )


def each_of(at: Sequence[Position]) -> tuple[int, ...]:
    """By what each position is divided."""
    return tuple(position.each if isinstance(position, Quotient) else 1 for position in at)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIndex(Position):
    """The number of the group in which a Position lies: how many of the `offsets` (an operand of i32, the groups' ends
    in order) it has reached. Behind the last group nothing is read."""

    offsets: str

    def surely_inside(self, size: int, domain: Sequence[int]) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A condition on the indices: `at` lies between `first` and `last`, both included; None: no bound. With `at` column
    - row these are diagonals of a matrix."""

    at: Position
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An indexed operand, or a factor that a Prologue makes, read at one position for each of its dimensions.

    `padded`: where a position lies outside of the operand, 0 is read; else none does. `within`: where one of these
    does not hold the operand is 0 and need not be read, so that infinities it would meet may come to nothing."""

    operand: str
    at: tuple[Position | Quotient | GroupIndex, ...]
    padded: bool = False
    within: tuple[Bounds, ...] = ()
