"""Products of a large matrix and a vector, as sums of rows: bound by memory, whatever multiplies them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from .lower import Builder, Expr, Lowering, NotLowered

LARGE = 1 << 20  # elements of the matrix; below, torch's operator is as good


def _matmul(b: Builder, x: Expr, other: Expr) -> Expr:
    """(.., M, K) @ (K, 1)."""
    if len(other.shape) != 2 or other.shape[1] != 1 or len(x.shape) < 2 or prod(x.shape) < LARGE:
        raise NotLowered
    row = other.reshape((*(1 for _ in x.shape[1:]), other.shape[0]))
    return (x.wide() * row.wide()).reduce("sum", (len(x.shape) - 1,), keepdim=True).to(b.out_dtype)


def _mm(b: Builder, x: Expr, mat2: Expr) -> Expr:
    return _matmul(b, x, mat2)


def _mv(b: Builder, x: Expr, vec: Expr) -> Expr:
    if prod(x.shape) < LARGE:
        raise NotLowered
    return (x.wide() * vec.reshape((1, vec.shape[0])).wide()).reduce("sum", (1,)).to(b.out_dtype)


def _linear(b: Builder, x: Expr, weight: Expr, bias: Expr | None = None) -> Expr:
    """(.., K) and a weight of (1, K)."""
    if len(weight.shape) != 2 or weight.shape[0] != 1 or len(x.shape) < 2 or prod(x.shape) < LARGE:
        raise NotLowered
    row = weight.reshape((*(1 for _ in x.shape[1:]), weight.shape[1]))
    total = (x.wide() * row.wide()).reduce("sum", (len(x.shape) - 1,), keepdim=True)
    return (total if bias is None else total + bias.wide()).to(b.out_dtype)


PRODUCT_LOWERINGS: Mapping[str, Lowering] = {"matmul": _matmul, "mm": _mm, "mv": _mv, "linear": _linear}
