"""Reductions of torch, softmax and its kin, and norms of vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ir.graph import Node

from . import sinks
from .lower import FLOATS, Builder, Expr, Lowering, NotLowered, Number, count
from .pointwise import truth
from .products import PRODUCT_LOWERINGS

Dims = Sequence[int] | int | None


def _dims(x: Expr, dim: Dims) -> tuple[int, ...]:
    """Dimensions as torch means them: None or none are all."""
    rank = len(x.shape)
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(rank))
    return tuple(d % rank for d in ([dim] if isinstance(dim, int) else dim)) if rank else ()


def _total(op: str) -> Lowering:
    def lower(b: Builder, x: Expr, dim: Dims = None, keepdim: bool = False, dtype: object = None) -> Expr:
        return x.to(b.out_dtype).reduce(op, _dims(x, dim), keepdim=keepdim)

    return lower


def _mean(b: Builder, x: Expr, dim: Dims = None, keepdim: bool = False, dtype: object = None) -> Expr:
    over = _dims(x, dim)
    values = x.to(b.out_dtype).wide()
    return values.reduce("sum", over, keepdim=keepdim) / count(x, over)


def _extremum(op: str) -> Lowering:
    def lower(b: Builder, x: Expr, dim: Dims = None, keepdim: bool = False, other: Expr | None = None) -> Any:
        if other is not None:
            return b.point({"max": "maximum", "min": "minimum"}[op], x.to(b.out_dtype), other.to(b.out_dtype))
        best = x.reduce(op, _dims(x, dim), keepdim=keepdim)
        return best if len(b.outs) == 1 else (best, x.reduce(f"arg{op}", _dims(x, dim), keepdim=keepdim))

    return lower


def _position(op: str) -> Lowering:
    def lower(b: Builder, x: Expr, dim: int | None = None, keepdim: bool = False) -> Expr:
        return x.reduce(op, _dims(x, dim), keepdim=keepdim)

    return lower


def _truths(op: str) -> Lowering:
    def lower(b: Builder, x: Expr, dim: Dims = None, keepdim: bool = False) -> Expr:
        values = truth(x)
        assert isinstance(values, Expr)
        return values.reduce(op, _dims(x, dim), keepdim=keepdim)

    return lower


def variance(x: Expr, dims: Sequence[int], *, correction: Number = 0, keepdim: bool = False) -> tuple[Expr, Expr]:
    """Mean and variance over `dims`, in one sweep; the squared deviations are divided by their count - `correction`."""
    n = count(x, dims) - correction
    if n <= 0:
        raise NotLowered
    mean = x.reduce("moments", dims, keepdim=keepdim, item=0)
    return mean, x.reduce("moments", dims, keepdim=keepdim, item=1) / n


def _spread(*, root: bool, both: bool) -> Lowering:
    def lower(b: Builder, x: Expr, dim: Dims = None, unbiased: bool = True, correction: Number | None = None,
              keepdim: bool = False) -> Any:  # fmt: skip
        delta = correction if correction is not None else int(unbiased)
        mean, var = variance(x.wide(), _dims(x, dim), correction=delta, keepdim=keepdim)
        result = var.do("sqrt") if root else var
        return (result, mean) if both else result

    return lower


def vector_norm(x: Expr, ord: Number, dims: Sequence[int] | None, *, keepdim: bool = False) -> Expr:
    """The `ord`-norm of the vectors along `dims`."""
    if ord == 2:
        return x.do("square").reduce("sum", dims, keepdim=keepdim).do("sqrt")
    if ord == 0:
        return x.do("ne", 0).to(x.dtype).reduce("sum", dims, keepdim=keepdim)
    size = x.do("abs")
    if math.isinf(ord):
        return size.reduce("max" if ord > 0 else "min", dims, keepdim=keepdim)
    if ord == 1:
        return size.reduce("sum", dims, keepdim=keepdim)
    return size.do("pow", float(ord)).reduce("sum", dims, keepdim=keepdim).do("pow", 1.0 / ord)


def _vector_norm(b: Builder, x: Expr, ord: Number = 2, dim: Dims = None, keepdim: bool = False,
                 dtype: object = None) -> Expr:  # fmt: skip
    values = (x if dtype is None else x.to(b.out_dtype)).wide()
    return vector_norm(values, ord, _dims(x, dim), keepdim=keepdim)


def softmax_parts(x: Expr, dim: int) -> tuple[Expr, Expr]:
    """Maximum, and sum of exp(x - maximum), along `dim`, which stays with size 1."""
    top = x.reduce("softmax_stats", (dim,), keepdim=True, item=0)
    return top, x.reduce("softmax_stats", (dim,), keepdim=True, item=1)


def log_softmax(x: Expr, dim: int) -> Expr:
    top, total = softmax_parts(x, dim)
    return x - top - total.do("log")


def _softmax(b: Builder, x: Expr, dim: int, **_: Any) -> Expr:
    values = x.to(b.out_dtype).wide() if b.out_dtype in FLOATS else x
    if not x.shape:
        raise NotLowered
    top, total = softmax_parts(values, dim)
    result = (values - top).do("exp") / total
    sinks.normalise(b, result, x, dim % len(x.shape))
    return result


def _log_softmax(b: Builder, x: Expr, dim: int, **_: Any) -> Expr:
    if not x.shape:
        raise NotLowered
    return log_softmax(x.to(b.out_dtype).wide(), dim)


def _logsumexp(b: Builder, x: Expr, dim: Dims, keepdim: bool = False) -> Expr:
    values, over = x.to(b.out_dtype).wide(), _dims(x, dim)
    top = values.reduce("softmax_stats", over, keepdim=keepdim, item=0)
    total = values.reduce("softmax_stats", over, keepdim=keepdim, item=1)
    return top.do("isinf").where(top, top + total.do("log"))


MOST_RANKED = 64  # more are better sorted


def _topk(b: Builder, x: Expr, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Expr, Expr]:
    if not x.shape or not 1 <= k <= MOST_RANKED or not sorted or x.dtype == "bool":
        raise NotLowered
    dim %= len(x.shape)
    if 0 in x.shape or x.shape[dim] == 1:
        raise NotLowered
    first = Node(
        name="", op="largest" if largest else "smallest", shape=(*x.shape[:dim], k, *x.shape[dim + 1 :]),
        dtype=x.dtype, args=(x.node.name, k), dims=(dim,),
    )  # fmt: skip
    return b.pure(first), b.pure(replace(first, dtype="i64", item=1))


REDUCE_LOWERINGS: Mapping[str, Lowering] = {
    **PRODUCT_LOWERINGS,
    "sum": _total("sum"), "prod": _total("prod"), "mean": _mean, "amax": _extremum("max"), "amin": _extremum("min"),
    "max": _extremum("max"), "min": _extremum("min"), "argmax": _position("argmax"),
    "argmin": _position("argmin"), "any": _truths("any"), "all": _truths("all"),
    "nansum": lambda b, x, **over: _total("sum")(b, x.do("isnan").where(0, x) if x.dtype in FLOATS else x, **over),
    "aminmax": lambda b, x, **over: (_position("min")(b, x, **over), _position("max")(b, x, **over)),
    "count_nonzero": lambda b, x, dim=None: x.do("ne", 0).to("i64").reduce("sum", _dims(x, dim)),
    "var": _spread(root=False, both=False), "std": _spread(root=True, both=False),
    "var_mean": _spread(root=False, both=True), "std_mean": _spread(root=True, both=True),
    "linalg_vector_norm": _vector_norm,
    "norm": lambda b, x, p=2, **over: _vector_norm(b, x, 2 if p is None else p, **over),
    "frobenius_norm": lambda b, x, **over: _vector_norm(b, x, 2, **over), "softmax": _softmax,
    "_softmax": _softmax, "log_softmax": _log_softmax, "_log_softmax": _log_softmax, "logsumexp": _logsumexp,
    "topk": _topk,
}  # fmt: skip
