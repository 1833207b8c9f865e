"""What an attention computes, in numbers: plain Python, no CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

Diagonals = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStep:
    """A dimension of a factor's batch: read at the index along dimension `dim` of the domain // `each` % `size`."""

    dim: int
    each: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A factor: its dimensions are the `batch`, with that of its rows (queries or keys) at place `at` among them (None:
    it has one row and no such dimension), and its columns last."""

    batch: tuple[BatchStep, ...]
    at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Over `domain`: batch dimensions, the queries as dimension `row` among them, and the value's columns last. Of the
    scores those count whose (key - query) is `visible`; the others are minus infinity (0 without softmax), and with
    `spares` need not be computed. `sparse`: the batch dimensions along which a condition moves that tells more of what
    is hidden; None: there is none."""

    domain: tuple[int, ...]
    row: int
    keys: int
    depth: int
    query: Layers
    key: Layers
    value: Layers
    visible: Diagonals = (None, None)
    spares: bool = True
    sparse: tuple[int, ...] | None = None

    @property
    def rows(self) -> int:
        return self.domain[self.row]

    @property
    def columns(self) -> int:
        return self.domain[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """The dimensions of the domain that are batch."""
        return tuple(d for d in range(len(self.domain) - 1) if d != self.row)

    @property
    def batches(self) -> int:
        return prod(self.domain[d] for d in self.batch)

    def indices(self, number: Any) -> dict[int, Any]:
        """The index along each batch dimension of the domain, of a number among `batches`."""
        found: dict[int, Any] = {}
        for d in reversed(self.batch):
            found[d] = number % self.domain[d] if d != self.batch[0] else number
            number = number // self.domain[d]
        return found

    @property
    def flops(self) -> int:
        """Of both products, without what is not visible."""
        low, high = self.visible
        seen = 0
        for row in (i * self.rows // 64 for i in range(min(self.rows, 64))) if self.rows > 64 else range(self.rows):
            first = 0 if low is None else max(row + low, 0)
            last = self.keys - 1 if high is None else min(row + high, self.keys - 1)
            seen += max(last - first + 1, 0)
        share = seen / (min(self.rows, 64) * self.keys)
        return int(2 * self.batches * self.rows * self.keys * (self.depth + self.columns) * share)


def layer_number(steps: tuple[BatchStep, ...], indices: dict[int, Any]) -> Any:
    """The number of a factor's layer, by the indices along the domain's batch."""
    number: Any = 0
    for step, index in zip(steps, layer_of(steps, indices), strict=True):
        number = number * step.size + index
    return number


def layer_of(steps: tuple[BatchStep, ...], indices: dict[int, Any]) -> tuple[Any, ...]:
    """Where a factor's batch is read, by the indices along the domain's."""
    found = []
    for step in steps:
        index = indices[step.dim]
        index = index // step.each if step.each > 1 else index
        found.append(index % step.size)
    return tuple(found)
