"""The messages of an audit: what a reference cell is asked to leave out or to move, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import TensorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOperations:
    """In a reference cell: call the constructed case and say which operations its forward is made of."""

    args: str
    inputs: tuple[TensorRef, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablate:
    """In a reference cell: as Call, with one operation, by its number, left out or drowned (see
    judge.reference_process.audit)."""

    tag: int
    args: str
    inputs: tuple[TensorRef, ...]
    seed: int
    operation: int
    way: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturb:
    """In a reference cell: move one parameter or buffer in place."""

    name: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a forward pass. `ways`: how it can be ablated, "skip K" or "cut"; `heavy`: a matrix product, a
    convolution or the like."""

    name: str
    ways: tuple[str, ...]
    heavy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationList:
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbed:
    """`moved`: whether there was any sense in moving it."""

    moved: bool
