"""Gathers: reads whose position along one dimension is another value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.facts.program import Position

from .lower import Builder, Expr, Lowering, NotLowered


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
    """`x[:, index]`: positions count from the end where they are negative."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype not in ("i64", "i32"):
        raise NotLowered
    ((dim, index),) = given
    return _gathered(b, x, dim, (index < 0).where(index + x.shape[dim], index))


def _gather(b: Builder, x: Expr, dim: int, index: Expr, **_: object) -> Expr:
    if not x.shape or not index.shape or index.dtype not in ("i64", "i32"):
        raise NotLowered
    at = [Position(steps=((d, 1),)) for d in range(len(x.shape))]
    at[dim % len(x.shape)] = Position(value=index.node.name)
    return b.load(x, index.shape, at)


GATHER_LOWERINGS: Mapping[str, Lowering] = {
    "embedding": _embedding, "index_select": _index_select, "index": _index, "gather": _gather,
}  # fmt: skip
