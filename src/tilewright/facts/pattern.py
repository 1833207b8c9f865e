"""A Pattern: a subgraph that a skeleton realises; a Match: all that was found in a module, case by case."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .program import Program
from .space import Point, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One fused computation found in the module. `id` is its name in the candidate too (`fused_0`, ...)."""

    id: str
    title: str  # what was fused, readable: "scale -> mask -> softmax"
    kind: str  # "pointwise", "row_reduce", "column_reduce", "whole_reduce"
    nodes: tuple[str, ...]  # names of the graph nodes it replaces
    program: Program
    space: Space

    @property
    def shape_class(self) -> str:
        """Equal for programs that differ only in names: the key under which winning points are remembered."""
        text = repr((self.kind, self.program.domain, self.program.reduced,
                     [(o.dtype, o.shape) for o in self.program.operands],
                     [s.op for s in self.program.body],
                     [(o.dtype, o.shape) for o in self.program.outputs]))  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A pattern and the knob settings with which to realise it."""

    pattern: str  # Pattern.id
    point: Point


Recipe = tuple[Choice, ...]  # the patterns to realise; every other node stays torch
