"""The messages of a replay: a graph's statements, run and timed one by one in a reference cell."""

from __future__ import annotations

from dataclasses import dataclass

from ...facts.discovery import InputStatistics, Named, Replayed, StatementOfGraph
from .parts import TensorRef

__all__ = ["Named", "Observe", "Observed", "Replay", "Replayed", "InputStatistics", "StatementOfGraph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """In a reference cell: run these statements on the constructed case, again and again, until `most_rounds` are done
    or `budget_s` is over. `parameters`: the names that the positional arguments have there."""

    args: str
    inputs: tuple[TensorRef, ...]
    parameters: tuple[str, ...]
    steps: tuple[StatementOfGraph, ...]
    flush_bytes: int
    most_rounds: int
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """In a reference cell: run these statements once, and say what the values named look like."""

    args: str
    inputs: tuple[TensorRef, ...]
    parameters: tuple[str, ...]
    steps: tuple[StatementOfGraph, ...]
    values: tuple[Named, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Of the values that are tensors of a known dtype, in the order of the statements."""

    spreads: tuple[InputStatistics, ...]
