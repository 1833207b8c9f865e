"""A Pattern: a subgraph that a skeleton realises; a Match: all that was found in a module, case by case."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .program import Load, Program
from .space import Point, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """How a node's value and an aligned tensor of a Program are views of each other.

    An operand is `value.reshape(split).permute(order).reshape(aligned shape)`, which never copies (`split` only divides
    dimensions). An output's value is `result.reshape(split).permute(order).reshape(shape of the node)`."""

    node: str
    split: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One place where a pattern stands in the graph; `operands` and `outputs` in the Program's order."""

    nodes: tuple[str, ...]  # the graph nodes that are computed here
    operands: tuple[Bind, ...]
    outputs: tuple[Bind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One fused computation found in the module, at one site or more that need the same Program.

    `id` is its name in the candidate too (`fused_0`, ...). Equal programs in several cases share one id."""

    id: str
    title: str  # what was fused, readable: "scale -> mask -> softmax"
    kind: str  # "pointwise", "row_reduce", "column_reduce", "whole_reduce", "scan"
    nodes: tuple[str, ...]  # names of the graph nodes it replaces, over all sites
    program: Program
    space: Space
    sites: tuple[Site, ...] = ()

    @property
    def shape_class(self) -> str:
        """Equal for programs that differ only in names: the key under which winning points are remembered."""
        text = repr((self.kind, self.program.domain, self.program.reduced,
                     [(o.dtype, o.shape, *([o.order] if o.order else [])) for o in self.program.operands],
                     [(s.at, s.fill) if isinstance(s, Load) else s.op for s in self.program.body],
                     [(o.dtype, o.shape) for o in self.program.outputs]))  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A pattern and the knob settings with which to realise it."""

    pattern: str  # Pattern.id
    point: Point


Recipe = tuple[Choice, ...]  # the patterns to realise; every other node stays torch
