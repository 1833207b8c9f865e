"""The messages of a replay: a graph's statements, run and timed one by one in a reference cell."""

from __future__ import annotations

from dataclasses import dataclass

from ..facts.discovery import Replayed, Step
from .parts import TensorRef

__all__ = ["Replay", "Replayed", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """In a reference cell: run these statements on the constructed case, again and again, until `most_rounds` are done
    or `budget_s` is over. `parameters`: the names that the positional arguments have there."""

    args: str
    inputs: tuple[TensorRef, ...]
    parameters: tuple[str, ...]
    steps: tuple[Step, ...]
    flush_bytes: int
    most_rounds: int
    budget_s: float
