"""Pools of pools: windows of windows are windows.

    max over windows of max over windows   = max over larger windows, where the inner ones touch or overlap
    sum over windows of sum over windows   = sum over larger windows, where the inner ones touch

The outer windows must lie inside of the inner result: what they are padded with is nothing that the inner ones see.
Exact for maxima. Sums are made in another order.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.access import Position
from tilewright.ir.graph import Graph, Node

from ..lowering.form import Stuck
from ..lowering.lower import FLOATS, Expr, NotLowered
from .draft import Draft
from .readers import Readers

FLOPS = 32  # that a tensor core's machine does while it reads or writes an element


def joined_pools(graph: Graph, least_flops: int) -> tuple[Graph, str, int] | None:
    """The graph with two pools as one, and what was done; None where no two follow one another. An element that is read
    counts as FLOPS of at least `least_flops`."""
    index = Readers(graph)
    for outer in graph.nodes:
        if outer.op not in ("max", "sum"):
            continue
        try:
            made = _joined(index, outer, least_flops)
        except (Stuck, NotLowered):
            continue
        if made is not None:
            return made
    return None


def _joined(index: Readers, outer: Node, least_flops: int) -> tuple[Graph, str, int] | None:
    draft = Draft(index)
    draft.origin = f"{outer.origin}_joined"
    far = _load_of(index, outer)
    inner, scale = _inner(index, far, outer.op)
    near = _load_of(index, inner)
    at, shape, dims = _positions(near, inner, far, outer)
    source = Expr(draft, index.nodes[near.sources[0]])
    if prod(source.shape) * FLOPS < least_flops:
        return None
    fill = near.fill
    windows = draft.load(source, shape, at, fill).to(inner.dtype)
    value = windows.reduce(outer.op, dims).reshape(outer.shape)
    value = value if scale == 1.0 else value * scale
    labels = " of ".join(index.calls[n.origin].label for n in (outer, inner))
    return draft.replaced(outer, value.to(outer.dtype)), f"{labels}: one", 0


def _load_of(index: Readers, total: Node) -> Node:
    """The windows that a pool takes."""
    node = index.nodes[total.sources[0]]
    while node.op == "to" and node.dtype in FLOATS and index.alone(node.name):
        node = index.nodes[node.sources[0]]
    if node.op != "load" or not index.alone(node.name) or any(type(p) is not Position or p.value for p in node.at):
        raise Stuck
    return node


def _inner(index: Readers, far: Node, op: str) -> tuple[Node, float]:
    """The pool whose result is read, and by what it is multiplied before."""
    if len(far.args) > 1:
        raise Stuck
    node, scale = index.nodes[far.sources[0]], 1.0
    while op == "sum" and node.op in ("div", "mul", "to") and index.alone(node.name):
        given = node.args[1:]
        if not isinstance(node.args[0], str) or any(isinstance(a, str) or a == 0 for a in given):
            raise Stuck
        if node.op != "to":
            scale = scale / float(given[0]) if node.op == "div" else scale * float(given[0])
        elif node.dtype not in ("f32", "f64"):  # rounded between
            raise Stuck
        node = index.nodes[node.sources[0]]
    if node.op != op or not index.alone(node.name) or scale - scale != 0.0:
        raise Stuck
    return node, scale


def _positions(
    near: Node, inner: Node, far: Node, outer: Node
) -> tuple[list[Position], tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """Where both pools read, over a shape, and over which dimensions of it: the outer result's, then windows."""
    kept = [d for d in range(len(near.shape)) if d not in inner.dims]
    out = [d for d in range(len(far.shape)) if d not in outer.dims]
    if len(far.at) != len(kept) or len(kept) != len(near.at):
        raise Stuck
    shape, at = [far.shape[d] for d in out], []
    for position in near.at:
        along = [(d, step) for d, step in position.steps if d in kept]
        within = [(d, step) for d, step in position.steps if d not in kept]
        if len(along) > 1 or len(within) > 1:
            raise Stuck
        start, steps = position.start, []
        taps, apart = (near.shape[within[0][0]], within[0][1]) if within else (1, 1)
        if along:
            d, each = along[0]
            beyond = far.at[kept.index(d)]
            start += each * beyond.start
            steps = [(out.index(e), each * step) for e, step in beyond.steps if e in out]
            further = [(far.shape[e], each * step) for e, step in beyond.steps if e not in out]
            if len(further) > 1:
                raise Stuck
            for more, step in further:
                taps, apart = _window(taps, apart, more, step, touching=outer.op == "sum")
        if taps > 1:
            steps.append((len(shape), apart))
            shape.append(taps)
        at.append(Position(start=start, steps=tuple(steps)))
    return at, tuple(shape), tuple(range(len(out), len(shape)))


def _window(taps: int, apart: int, more: int, step: int, *, touching: bool) -> tuple[int, int]:
    """Taps and dilation of windows of `more` windows, `step` from one another."""
    if taps == 1:
        return more, step
    if apart != 1 or (step != taps if touching else step > taps):
        raise Stuck
    return (more - 1) * step + taps, 1
