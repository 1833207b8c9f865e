"""Running sums, products and extrema; reversed ones, written with flips, and exclusive ones, written with a cat."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.program import POINTWISE, SCANS

from ..associative import NAMESPACE
from .lower import Builder, Expr, Lowering, NotLowered, Number

_NOTHING = {"cumsum": 0, "cumprod": 1, "logcumsumexp": -math.inf, "cummax": -math.inf, "cummin": math.inf}


def _scan(op: str) -> Lowering:
    def lower(b: Builder, x: Expr, dim: int, dtype: object = None) -> Expr:
        values = x.to(b.out_dtype).wide()
        return b.scan(op, values, dim=dim % len(x.shape)) if x.shape else values

    return lower


def _extremum(op: str) -> Lowering:
    def lower(b: Builder, x: Expr, dim: int) -> tuple[Expr, Expr]:
        if not x.shape:
            raise NotLowered
        dim %= len(x.shape)
        place = b.place(x.shape[dim], dim, len(x.shape))
        return b.scan(op, x, place, dim=dim), b.scan(op, x, place, dim=dim, item=1)

    return lower


def _recurrence(b: Builder, gate: Expr, added: Expr) -> Expr:
    return b.scan("recurrence", gate, added, dim=0)


def _flip(b: Builder, x: Expr, dims: Sequence[int]) -> Expr:
    over = tuple(sorted(d % len(x.shape) for d in dims if x.shape[d] > 1))
    if not over or x.node.op == "flip":  # a copy that the author asked for
        raise NotLowered
    flipped = Node(name="", op="flip", shape=x.shape, dtype=x.dtype, args=(x.node.name,), dims=over)
    return _unflipped(b, x, over) or b.pure(flipped)


def _unflipped(b: Builder, x: Expr, dims: tuple[int, ...]) -> Expr | None:
    """y with flip(y) = x, where x is made of flipped values by operations that commute with flips; else None."""

    def leaf(node: Node) -> Expr | None:
        if node.op == "flip" and node.dims == dims:
            return _named(b, node.sources[0])
        if node.op in SCANS:
            *given, reverse, exclusive = node.args
            args = _rebuilt_args(b, node, given, leaf, dims)
            turned = bool(reverse) != (node.dims[0] in dims)
            return (
                None
                if args is None
                else b.scan(node.op, *args, dim=node.dims[0], reverse=turned, exclusive=bool(exclusive), item=node.item)
            )
        along = _position(b, node)
        return None if along is None else (along - 1) - _named(b, node.name)

    return _rebuilt(b, x, leaf, dims)


def _position(b: Builder, node: Node) -> int | None:
    """How many positions there are, of a node that is them along its first dimension."""
    source = b.nodes[node.sources[0]] if node.op == "reshape" else node
    return source.shape[0] if source.op == "index" and node.shape[0] == source.shape[0] else None


def exclusive(b: Builder, tensors: Sequence[Expr], dim: int) -> Expr:
    """What a sum of nothing is, then the sums of all but the last element: an exclusive scan of all of them. Raises
    NotLowered where these tensors, to be joined along `dim`, are none."""
    if len(tensors) != 2 or not tensors[0].shape:
        raise NotLowered
    head, tail = tensors
    dim %= len(head.shape)
    cast = tail.node.op == "to"
    node = b.nodes[tail.node.sources[0]] if cast else tail.node
    plain = node.op in _NOTHING and node.dims == (dim,) and not any(node.args[-2:]) and not node.item
    if not plain or head.dtype != tail.dtype or head.shape[dim] != 1 or head.literal != _NOTHING[node.op]:
        raise NotLowered
    whole = (*tail.shape[:dim], tail.shape[dim] + 1, *tail.shape[dim + 1 :])

    def leaf(part: Node) -> Expr | None:
        if _position(b, part) is not None:
            return b.place(whole[dim], dim, len(whole))
        if part.op != "slice" or part.dims != (dim, 0, whole[dim] - 1):
            return None
        source = _named(b, part.sources[0])
        return source if source.shape == whole else None

    args = _rebuilt_args(b, node, node.args[:-2], leaf, (dim,))
    if args is None:
        raise NotLowered
    return b.scan(node.op, *args, dim=dim, exclusive=True).to(tail.dtype)


def _named(b: Builder, name: str) -> Expr:
    return Expr(b, b.nodes[name])


def _rebuilt(b: Builder, x: Expr, leaf: Callable[[Node], Expr | None], dims: tuple[int, ...]) -> Expr | None:
    """x with its leaves replaced, if it is one or made of them by pointwise operations along `dims`."""
    found = leaf(x.node)
    if found is not None or x.node.op not in POINTWISE or x.node.op == "index":
        return found
    args = _rebuilt_args(b, x.node, x.node.args, leaf, dims)
    return None if args is None else b.point(x.node.op, *args, dtype=x.dtype)


def _rebuilt_args(
    b: Builder, node: Node, given: Sequence[str | Number], leaf: Callable[[Node], Expr | None], dims: tuple[int, ...]
) -> list[Expr | Number] | None:
    """These arguments of a node that broadcasts, rebuilt where they vary along `dims`; None where one can't be."""
    args: list[Expr | Number] = []
    for arg in given:
        if not isinstance(arg, str):
            args.append(arg)
            continue
        source = _named(b, arg)
        offset = len(node.shape) - len(source.shape)
        if any(d >= offset and source.shape[d - offset] != 1 for d in dims):
            new = _rebuilt(b, source, leaf, dims) if offset == 0 or _position(b, source.node) else None
            if new is None:
                return None
            source = new
        args.append(source)
    return args


SCAN_LOWERINGS: Mapping[str, Lowering] = {
    "cumsum": _scan("cumsum"), "cumprod": _scan("cumprod"), "logcumsumexp": _scan("logcumsumexp"),
    "cummax": _extremum("cummax"), "cummin": _extremum("cummin"), "flip": _flip,
    f"{NAMESPACE}::recurrence": _recurrence,
}  # fmt: skip
