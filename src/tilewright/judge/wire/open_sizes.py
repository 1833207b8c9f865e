"""The messages by which a reference is asked for what sizes its module computes the same."""

from __future__ import annotations

from dataclasses import dataclass

from ...facts.problem import OpenSize


@dataclass(frozen=True, slots=True, kw_only=True)
class TryOpenSizes:
    """In a reference cell: throughout the ranges of which of these sizes does the module, as it is constructed, compute
    the same? Answered with `TriedOpenSizes`."""

    sizes: tuple[OpenSize, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedOpenSizes:
    """`names` of the sizes, and `why` it does not for the others."""

    names: tuple[str, ...]
    why: str = ""
