"""The messages by which inputs, or state, are moved to where a result turns (judge.reference_process.boundary)."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import TensorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """In a reference cell: overwrite the floating ones of these inputs, which are an own draw, with such that results
    are about to turn. `number`: of how many such requests this is the next, so that outputs and sides come in turn.
    `state`: where no input can be moved, parameters may be. Answered by Approached."""

    args: str
    inputs: tuple[TensorRef, ...]
    seed: int
    number: int
    state: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Approached:
    """`turned`: groups of elements (rows, as a rule) that now lie beside a turn, of so many."""

    turned: int
    groups: int
