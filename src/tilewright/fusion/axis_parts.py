"""Dimensions of values as parts of axes, followed through views: forwards to what reads a value, and backwards to what
lies in memory before heads are repeated or copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.graph import Node

from .axes import Axis
from .region import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPart:
    """The index along an axis, divided by `each`, modulo `size`."""

    axis: Axis
    each: int
    size: int

    @property
    def whole(self) -> bool:
        return (self.each, self.size) == (1, self.axis.size)


Dims = tuple[tuple[AxisPart, ...], ...]  # of each dimension, outermost first; none where it has size 1 or is broadcast


def whole_axes(dims: Sequence[Sequence[Axis]]) -> Dims:
    """The same of whole axes."""
    return tuple(tuple(AxisPart(axis=a, each=1, size=a.size) for a in dim) for dim in dims)


def split_parts(dims: Dims, axis: Axis, halves: tuple[Axis, Axis]) -> Dims | None:
    """The same where an axis is two, the outer one first; None where a part needs some of either."""
    outer, inner = halves
    found = []
    for dim in dims:
        own: list[AxisPart] = []
        for p in dim:
            if p.axis is not axis:
                own.append(p)
            elif p.each % inner.size == 0:
                own.append(AxisPart(axis=outer, each=p.each // inner.size, size=p.size))
            elif inner.size % (p.each * p.size) == 0:
                own.append(AxisPart(axis=inner, each=p.each, size=p.size))
            elif p.each * p.size == axis.size and inner.size % p.each == 0:
                own += [AxisPart(axis=outer, each=1, size=outer.size),
                        AxisPart(axis=inner, each=p.each, size=inner.size // p.each)]  # fmt: skip
            else:
                return None
        found.append(tuple(own))
    return tuple(found)


def through_views(flow: Flow, name: str, root: str, dims: Dims) -> Dims | None:
    """The dimensions of a view of a value, by those of the value; None where parts of its dimensions don't divide."""
    chain: list[Node] = []
    while name != root:
        chain.append(flow.nodes[name])
        name = chain[-1].sources[0]
    found: Dims | None = dims
    for view in reversed(chain):
        if found is None or view.op == "expand":
            return None
        flat = [p for dim in found for p in dim]
        found = tuple(found[d] for d in view.dims) if view.op == "permute" else _grouped(flat, view.shape)
    return found


def before_copies(flow: Flow, node: Node, dims: Dims) -> tuple[Node, Dims, tuple[str, ...]]:
    """What a value is a copy of, with heads repeated perhaps, the dimensions there, and the copies that lie between;
    the value itself where nothing was copied."""
    best, between = (node, dims), list[str]()
    passed: list[str] = []
    while True:
        if node.op == "to" and flow.nodes[node.sources[0]].dtype == node.dtype:
            passed.append(node.name)
            node = flow.nodes[node.sources[0]]
            best, between = (node, dims), list(passed)
            continue
        source = flow.nodes[node.sources[0]] if node.op in ("permute", "reshape", "expand") else None
        behind = None if source is None else _behind(node, source, dims)
        if source is None or behind is None:
            return *best, tuple(between)
        repeats = node.op == "expand"
        node, dims = source, behind
        if repeats:
            best, between = (node, dims), list(passed)


def _behind(view: Node, source: Node, dims: Dims) -> Dims | None:
    """The dimensions of what a view shows."""
    if view.op == "permute":
        return tuple(dims[view.dims.index(d)] for d in range(len(dims)))
    if view.op == "expand":
        if len(source.shape) != len(view.shape):
            return None
        return tuple(() if size == 1 else dim for size, dim in zip(source.shape, dims, strict=True))
    if any(prod(p.size for p in dim) != size for dim, size in zip(dims, view.shape, strict=True)):
        return None  # something is broadcast
    return _grouped([p for dim in dims for p in dim], source.shape)


def _grouped(parts: Sequence[AxisPart], shape: Sequence[int]) -> Dims | None:
    """Parts, outermost first, as the dimensions of a shape, divided where these need it; None where they cut across."""
    todo, found = list(parts), []
    for size in shape:
        dim: list[AxisPart] = []
        while prod(p.size for p in dim) < size:
            if not todo:
                return None
            part, lacks = todo.pop(0), size // prod(p.size for p in dim)
            if part.size > lacks:
                if part.size % lacks:
                    return None
                inner = part.size // lacks
                todo.insert(0, AxisPart(axis=part.axis, each=part.each, size=inner))
                part = AxisPart(axis=part.axis, each=part.each * inner, size=lacks)
            dim.append(part)
        if prod(p.size for p in dim) != size:
            return None
        found.append(tuple(dim))
    return None if todo else tuple(found)
