"""Concatenation and stacking as a choice by position, so that what is joined, and who reads it, may share a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.access import Position
from tilewright.ir.graph import VIEWS
from tilewright.ir.program import POINTWISE

from . import sinks
from .loop import loop
from .lower import Builder, Expr, Lowering, NotLowered, Number
from .scan import exclusive

MOST_PARTS = 4  # all are computed at every position: more are better copied together


def _stack(b: Builder, tensors: Sequence[Expr], dim: int = 0) -> Expr:
    if len(tensors) > MOST_PARTS:
        return loop(b, tensors, dim % (len(tensors[0].shape) + 1))
    return _side_by_side(b, tensors, dim % (len(tensors[0].shape) + 1))


def _cat(b: Builder, tensors: Sequence[Expr], dim: int = 0) -> Expr:
    try:
        return exclusive(b, tensors, dim)
    except NotLowered:
        pass
    if not all(t.shape for t in tensors):
        raise NotLowered
    dim %= len(tensors[0].shape)
    if len(tensors) > MOST_PARTS and all(t.shape[dim] == 1 for t in tensors):
        return loop(b, tensors, dim).reshape(tuple(b.outs[0].shape))
    alike = len({t.shape for t in tensors}) == len({frozenset(_leaves(b, t.node.name)) for t in tensors}) == 1
    if alike:
        return _side_by_side(b, tensors, dim).reshape(tuple(b.outs[0].shape))
    result = _one_after_another(b, tensors, dim)
    sinks.join(b, result, list(tensors), dim)
    return result


def _leaves(b: Builder, name: str) -> set[str]:
    """The values from which kernels could make this one."""
    node = b.nodes[name]
    if node.op in VIEWS or node.op in POINTWISE or node.op in ("slice", "load"):
        return {leaf for source in node.sources for leaf in _leaves(b, source)}
    return {name}


def _side_by_side(b: Builder, tensors: Sequence[Expr], dim: int) -> Expr:
    """Parts of one shape along a new dimension; made of the same values, they read nothing in vain."""
    if not 2 <= len(tensors) <= MOST_PARTS:
        raise NotLowered
    parts = [t.to(b.out_dtype).reshape((*t.shape[:dim], 1, *t.shape[dim:])) for t in tensors]
    place = b.place(len(parts), dim, len(parts[0].shape))
    result = parts[-1]
    for number, part in reversed(list(enumerate(parts[:-1]))):
        result = place.do("eq", number).where(part, result)
    return result


def _one_after_another(b: Builder, tensors: Sequence[Expr], dim: int) -> Expr:
    """Two parts that nothing binds together: each is read where it lies, and nowhere else."""
    if len(tensors) != 2:
        raise NotLowered
    shape = tuple(b.outs[0].shape)
    place = b.place(shape[dim], dim, len(shape))
    ends = [sum(t.shape[dim] for t in tensors[: i + 1]) for i in range(len(tensors))]
    parts: list[Expr | Number] = []
    for tensor, end in zip(tensors, ends, strict=True):
        at = [Position(start=tensor.shape[d] - end if d == dim else 0, steps=((d, 1),)) for d in range(len(shape))]
        parts.append(b.load(tensor.to(b.out_dtype), shape, at, 0) if tensor.literal is None else tensor.literal)
    if not any(isinstance(part, Expr) for part in parts):
        raise NotLowered
    return (place < ends[0]).where(*parts)


JOIN_LOWERINGS: Mapping[str, Lowering] = {"cat": _cat, "stack": _stack}
