"""Gathers: reads whose position along one dimension is another value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod

import torch

from tilewright.ir.access import Position

from .lower import FLOATS, Builder, Expr, Lowering, NotLowered


def _gathered(b: Builder, x: Expr, dim: int, index: Expr) -> Expr:
    """`x` with dimension `dim` read at `index`, whose dimensions take its place."""
    if index.dtype not in ("i64", "i32"):
        raise NotLowered
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    behind = len(x.shape) - dim - 1
    value = index.reshape((*index.shape, *(1,) * behind))
    at = [Position(steps=((d if d < dim else d - 1 + len(index.shape), 1),)) for d in range(len(x.shape))]
    at[dim] = Position(value=value.node.name)
    return b.load(x, shape, at)


def _embedding(b: Builder, weight: Expr, indices: Expr, **_: object) -> Expr:
    return _gathered(b, weight, 0, indices)


def _index_select(b: Builder, x: Expr, dim: int, index: Expr) -> Expr:
    if not x.shape or not index.shape:
        raise NotLowered
    return _gathered(b, x, dim % len(x.shape), index)


def _index(b: Builder, x: Expr, indices: Sequence[Expr | None]) -> Expr:
    """`x[:, index]`, or `x[:, index, other]` of neighbouring dimensions: positions count from the end where they are
    negative."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    dims = [d for d, _ in given]
    together = dims == list(range(dims[0], dims[0] + len(dims))) if dims else False
    if not together or any(index.dtype not in ("i64", "i32") for _, index in given):
        raise NotLowered
    if len(given) == 1:
        ((dim, index),) = given
        return _gathered(b, x, dim, _from_front(index, x.shape[dim]))
    place: Expr | int = 0
    inside: Expr | None = None
    for d, index in given:
        at = _from_front(index.to("i64"), x.shape[d])
        place, own = at + place * x.shape[d], (at >= 0).do("logical_and", at < x.shape[d])
        inside = own if inside is None else inside.do("logical_and", own)
    assert inside is not None and isinstance(place, Expr)
    flat = x.reshape((*x.shape[: dims[0]], prod(x.shape[d] for d in dims), *x.shape[dims[-1] + 1 :]))
    return _gathered(b, flat, dims[0], inside.where(place, -1))


def _from_front(index: Expr, size: int) -> Expr:
    return (index < 0).where(index + size, index)


def _take(b: Builder, x: Expr, index: Expr) -> Expr:
    if not x.shape or not index.shape or index.dtype != "i64":
        raise NotLowered
    return _gathered(b, x.reshape((prod(x.shape),)), 0, _from_front(index, prod(x.shape)))


def _take_along(b: Builder, x: Expr, indices: Expr, dim: int | None = None) -> Expr:
    if dim is None:
        x, indices, dim = x.reshape((prod(x.shape),)), indices.reshape((prod(indices.shape),)), 0
    alike = [d for d, size in enumerate(indices.shape) if d == dim % len(x.shape) or size == x.shape[d]]
    if len(indices.shape) != len(x.shape) or len(alike) != len(x.shape):
        raise NotLowered
    return _gather(b, x, dim, indices)


def _gather(b: Builder, x: Expr, dim: int, index: Expr, **_: object) -> Expr:
    if not x.shape or not index.shape or index.dtype not in ("i64", "i32"):
        raise NotLowered
    at = [Position(steps=((d, 1),)) for d in range(len(x.shape))]
    at[dim % len(x.shape)] = Position(value=index.node.name)
    return b.load(x, index.shape, at)


_SUM, _MEAN, _MAX = range(3)
RAGGED_ON = ("cuda",)  # where kernels look at stretches of rows alone; others would look at all indices for each bag


def _embedding_bag(b: Builder, weight: Expr, indices: Expr, offsets: Expr, mode: int = _SUM,
                   per_sample_weights: Expr | None = None, include_last_offset: bool = False,
                   padding_idx: int | None = None, **_: object) -> tuple[Expr, None, None, None]:  # fmt: skip
    """Bags of one length, as two-dimensional indices make them, or ragged ones on a GPU."""
    length = _bag_length(b, offsets, indices.shape[0])
    if weight.dtype not in FLOATS:
        raise NotLowered
    if length == 0 or include_last_offset:
        return _ragged(b, weight, indices, offsets, mode=mode, weights=per_sample_weights,
                       more=int(include_last_offset), padding=padding_idx), None, None, None  # fmt: skip
    bags = indices.reshape((indices.shape[0] // length, length))
    rows = _gathered(b, weight, 0, bags).wide()
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.to(rows.dtype).reshape((*bags.shape, 1))
    counted = None if padding_idx is None else bags.do("ne", padding_idx % weight.shape[0])
    if counted is not None:
        rows = counted.reshape((*bags.shape, 1)).where(rows, -math.inf if mode == _MAX else 0.0)
    result = rows.reduce("max" if mode == _MAX else "sum", (1,))
    if mode == _SUM:
        return result, None, None, None
    if counted is None:
        return (result / length if mode == _MEAN else result), None, None, None
    count = counted.to(rows.dtype).reduce("sum", (1,), keepdim=True)
    result = result / count.do("maximum", 1.0) if mode == _MEAN else (count > 0).where(result, 0.0)
    return result, None, None, None


def _ragged(
    b: Builder, weight: Expr, indices: Expr, offsets: Expr, *, mode: int, weights: Expr | None, more: int,
    padding: int | None,
) -> Expr:  # fmt: skip
    """Bags from each offset to the next: reductions over all indices, of which nothing counts outside of the bag (see
    `stages.propose.ragged`)."""
    (count,), bags = indices.shape, offsets.shape[0] - more
    narrow = weight.shape[1] < 2 or weight.dtype == "f64" or b.ins[0].device.type not in RAGGED_ON
    led = weights is not None and torch.is_grad_enabled()  # their gradient would look at all indices for each bag
    if narrow or led or count < 2 or bags < 1 or (padding is not None and mode != _SUM):
        raise NotLowered
    begin, end = (b.load(offsets, (bags,), [Position(start=k, steps=((0, 1),))], count).to("i64") for k in (0, 1))
    place = b.place(count, 1, 3)
    inside = (place >= begin.reshape((bags, 1, 1))).do("logical_and", place < end.reshape((bags, 1, 1)))
    rows = _gathered(b, weight, 0, indices).wide()
    if weights is not None:
        rows = rows * weights.to(rows.dtype).reshape((count, 1))
    if padding is not None:
        rows = indices.do("ne", padding % weight.shape[0]).reshape((count, 1)).where(rows, 0.0)
    result = inside.where(rows, -math.inf if mode == _MAX else 0.0).reduce("max" if mode == _MAX else "sum", (1,))
    length = (end - begin).reshape((bags, 1))
    if mode == _MEAN:
        return result / length.to(result.dtype).do("maximum", 1.0)
    return (length > 0).where(result, 0.0) if mode == _MAX else result


def _bag_length(b: Builder, offsets: Expr, indices: int) -> int:
    """The length of all bags, where offsets are counted out while tracing: 0, length, 2 x length, ...; else 0."""
    node, length = offsets.node, 1
    if node.op == "mul" and isinstance(node.args[1], int):
        node, length = b.nodes[node.sources[0]], int(node.args[1])
    if node.op != "index" or length < 1 or node.shape[0] * length != indices:
        return 0
    return length


GATHER_LOWERINGS: Mapping[str, Lowering] = {
    "embedding": _embedding, "index_select": _index_select, "index": _index, "gather": _gather, "take": _take,
    "take_along_dim": _take_along, "embedding_bag": _embedding_bag,
}  # fmt: skip
