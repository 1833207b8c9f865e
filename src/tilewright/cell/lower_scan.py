"""Cumulative sums and products; reversed ones, written with flips, and exclusive ones, written with a cat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.facts.graph import Node
from tilewright.facts.program import POINTWISE, SCANS

from .lower import Builder, Expr, Lowering, NotLowered

_NOTHING = {"cumsum": 0, "cumprod": 1}


def _scan(op: str) -> Lowering:
    def lower(b: Builder, x: Expr, dim: int, dtype: object = None) -> Expr:
        values = x.to(b.out_dtype).wide()
        return b.scan(op, values, dim % len(x.shape)) if x.shape else values

    return lower


def _flip(b: Builder, x: Expr, dims: Sequence[int]) -> Expr:
    over = tuple(sorted(d % len(x.shape) for d in dims))
    if not over or x.node.op == "flip":  # a copy that the author asked for
        raise NotLowered
    return _unflipped(b, x, over) or b.flip(x, over)


def _unflipped(b: Builder, x: Expr, dims: tuple[int, ...]) -> Expr | None:
    """y with flip(y) = x, where x is made of flipped values by operations that commute with flips; else None."""

    def leaf(node: Node) -> Expr | None:
        if node.op == "flip" and node.dims == dims:
            return _named(b, node.sources[0])
        if node.op in SCANS:
            source = _unflipped(b, _named(b, node.sources[0]), dims)
            reverse, exclusive = bool(node.args[1]), bool(node.args[2])
            turned = reverse != (node.dims[0] in dims)
            return source and b.scan(node.op, source, node.dims[0], reverse=turned, exclusive=exclusive)
        return None

    return _rebuilt(b, x, leaf, dims)


def exclusive(b: Builder, tensors: Sequence[Expr], dim: int) -> Expr:
    """What a sum of nothing is, then the sums of all but the last element: an exclusive scan of all of them. Raises
    NotLowered where these tensors, to be joined along `dim`, are none."""
    if len(tensors) != 2 or not tensors[0].shape:
        raise NotLowered
    head, tail = tensors
    dim %= len(head.shape)
    cast = tail.node.op == "to"
    node = b.nodes[tail.node.sources[0]] if cast else tail.node
    plain = node.op in SCANS and node.dims == (dim,) and not any(node.args[1:])
    if not plain or head.dtype != tail.dtype or head.shape[dim] != 1 or head.literal != _NOTHING[node.op]:
        raise NotLowered
    whole = (*tail.shape[:dim], tail.shape[dim] + 1, *tail.shape[dim + 1 :])

    def leaf(part: Node) -> Expr | None:
        if part.op != "slice" or part.dims != (dim, 0, whole[dim] - 1):
            return None
        source = _named(b, part.sources[0])
        return source if source.shape == whole else None

    source = _rebuilt(b, _named(b, node.sources[0]), leaf, (dim,))
    if source is None:
        raise NotLowered
    return b.scan(node.op, source, dim, exclusive=True).to(tail.dtype)


def _named(b: Builder, name: str) -> Expr:
    return Expr(b, b.nodes[name])


def _rebuilt(b: Builder, x: Expr, leaf: Callable[[Node], Expr | None], dims: tuple[int, ...]) -> Expr | None:
    """x with its leaves replaced, if it is one or made of them by pointwise operations along `dims`."""
    found = leaf(x.node)
    if found is not None or x.node.op not in POINTWISE or x.node.op == "index":
        return found
    args: list[Expr | float | int | bool] = []
    for arg in x.node.args:
        if not isinstance(arg, str):
            args.append(arg)
            continue
        source = _named(b, arg)
        offset = len(x.shape) - len(source.shape)
        if any(d >= offset and source.shape[d - offset] != 1 for d in dims):
            new = _rebuilt(b, source, leaf, dims) if offset == 0 else None
            if new is None:
                return None
            source = new
        args.append(source)
    return b.point(x.node.op, *args, dtype=x.dtype)


SCAN_LOWERINGS: Mapping[str, Lowering] = {
    "cumsum": _scan("cumsum"), "cumprod": _scan("cumprod"), "flip": _flip,
}  # fmt: skip
