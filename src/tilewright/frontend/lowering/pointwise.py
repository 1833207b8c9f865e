"""Pointwise operators of torch, activations among them, spelled in the vocabulary of facts.program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tilewright.ir.access import Position

from .lower import FLOATS, TORCH_DTYPES, Builder, Expr, Lowering, NotLowered, Number, dtype_name

Operand = Expr | Number


def _cast(x: Operand, dtype: str) -> Operand:
    return x.to(dtype) if isinstance(x, Expr) else x


def _float(b: Builder, x: Expr) -> Expr:
    """`x` in the result's dtype, which must be floating."""
    if b.out_dtype not in FLOATS:
        raise NotLowered
    return x.to(b.out_dtype)


def _unary(op: str, *, floating: bool = True) -> Lowering:
    def lower(b: Builder, x: Expr) -> Expr:
        if not floating and x.dtype not in FLOATS and op in ("floor", "ceil", "round", "trunc"):
            return x
        return (_float(b, x) if floating else x).do(op)

    return lower


def _binary(op: str) -> Lowering:
    def lower(b: Builder, x: Operand, other: Operand, alpha: Number = 1) -> Expr:
        left, right = _cast(x, b.out_dtype), _cast(other, b.out_dtype)
        if alpha != 1:
            right = right * alpha
        return b.point(op, left, right)

    return lower


def _comparison(op: str) -> Lowering:
    def lower(b: Builder, x: Operand, other: Operand) -> Expr:
        return b.point(op, *_like_torch(x, other))

    return lower


def _like_torch(x: Operand, other: Operand) -> tuple[Operand, Operand]:
    """Both in the dtype to which torch promotes them, a 0-dim tensor and a number giving way to a tensor."""
    samples = [torch.empty((1,) * len(v.shape), dtype=_torch(v)) if isinstance(v, Expr) else v for v in (x, other)]
    common = dtype_name(torch.result_type(*samples))  # type: ignore[arg-type]  # takes numbers in both places
    return _cast(x, common), _cast(other, common)


def _torch(x: Expr) -> torch.dtype:
    if x.dtype not in TORCH_DTYPES:
        raise NotLowered
    return TORCH_DTYPES[x.dtype]


def _logical(op: str) -> Lowering:
    def lower(b: Builder, x: Operand, other: Operand | None = None) -> Expr:
        return b.point(op, *(truth(v) for v in (x, other) if v is not None))

    return lower


def truth(x: Operand) -> Operand:
    """`x` as bool: whether it differs from zero."""
    return x if not isinstance(x, Expr) or x.dtype == "bool" else x.do("ne", 0)


def _div(b: Builder, x: Operand, other: Operand, rounding_mode: str | None = None) -> Expr:
    if rounding_mode is None:
        return b.point("div", _cast(x, b.out_dtype), _cast(other, b.out_dtype))
    if rounding_mode == "floor":
        return b.point("floor_divide", _cast(x, b.out_dtype), _cast(other, b.out_dtype))
    if b.out_dtype not in FLOATS:
        raise NotLowered
    return b.point("div", _cast(x, b.out_dtype), _cast(other, b.out_dtype)).do("trunc")


def _pow(b: Builder, x: Operand, exponent: Operand) -> Expr:
    base, power = _cast(x, b.out_dtype), _cast(exponent, b.out_dtype)
    if isinstance(power, Expr) and power.literal is not None:
        power = power.literal
    if isinstance(base, Expr) and not isinstance(power, Expr):
        simple = small_power(base, power)
        if simple is not None:
            return simple
    if b.out_dtype not in FLOATS:
        raise NotLowered
    return b.point("pow", base, power)


def small_power(x: Expr, power: Number) -> Expr | None:
    """`x ** power` without a logarithm, where it has a short form."""
    floating = x.dtype in FLOATS
    if power in (2, 3, 4):
        square = x.do("square") if floating else x * x
        return {2: square, 3: square * x}.get(int(power)) or square * square
    if power == 1:
        return x
    if not floating:
        return None
    if power in (0.5, -0.5, -1, -2):
        if power == -2:
            return x.do("square").do("reciprocal")
        return x.do({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[power])
    return None


def _where(b: Builder, condition: Expr, x: Operand = 1, other: Operand = 0) -> Expr:
    return b.point("where", truth(condition), _cast(x, b.out_dtype), _cast(other, b.out_dtype), dtype=b.out_dtype)


def _clamp(b: Builder, x: Expr, min: Operand | None = None, max: Operand | None = None) -> Expr:
    result = x.to(b.out_dtype)
    if min is not None:
        result = result.do("maximum", _cast(min, b.out_dtype))
    return result if max is None else result.do("minimum", _cast(max, b.out_dtype))


def _lerp(b: Builder, x: Expr, end: Expr, weight: Operand) -> Expr:
    if isinstance(weight, Expr):
        near = x + weight * (end - x)
        return (weight.do("abs") < 0.5).where(near, end - (end - x) * (1 - weight))
    return x + (end - x) * weight if abs(weight) < 0.5 else end - (end - x) * (1 - weight)


def _addcmul(b: Builder, x: Expr, tensor1: Expr, tensor2: Expr, value: Number = 1) -> Expr:
    first, second = tensor1.to(b.out_dtype), tensor2.to(b.out_dtype)
    return x.to(b.out_dtype) + (first * second if value == 1 else first * value * second)


def _addcdiv(b: Builder, x: Expr, tensor1: Expr, tensor2: Expr, value: Number = 1) -> Expr:
    first, second = _float(b, tensor1), _float(b, tensor2)
    return x.to(b.out_dtype) + (first if value == 1 else first * value) / second


def _round(b: Builder, x: Expr, decimals: int = 0) -> Expr:
    if decimals:
        raise NotLowered
    return x if x.dtype not in FLOATS else x.do("round")


def _triangle(b: Builder, x: Expr, op: str, diagonal: int) -> Expr:
    rows, columns = x.shape[-2:]
    row = b.index(rows).reshape((rows, 1))
    keep = b.index(columns).do(op, row + diagonal if diagonal else row)
    value: Operand = x if x.literal is None else x.literal
    if not isinstance(value, Expr) and len(x.shape) > 2:
        raise NotLowered
    return b.point("where", keep, value, 0, dtype=x.dtype)


def _diag(b: Builder, x: Expr, diagonal: int = 0) -> Expr:
    if len(x.shape) == 1:
        return _diag_embed(b, x, diagonal)
    rows, columns = x.shape
    count = min(rows - max(-diagonal, 0), columns - max(diagonal, 0))
    if count < 1:
        raise NotLowered
    at = [Position(start=max(-diagonal, 0), steps=((0, 1),)), Position(start=max(diagonal, 0), steps=((0, 1),))]
    return b.load(x, (count,), at)


def _diag_embed(b: Builder, x: Expr, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Expr:
    """Where the column is `offset` behind the row there is x, else nought."""
    *outer, n = x.shape
    rank = len(outer) + 2
    if (dim1 % rank, dim2 % rank) != (rank - 2, rank - 1) or x.literal is not None:
        raise NotLowered
    size = n + abs(offset)
    row = b.index(size).reshape((size, 1))
    keep = b.index(size).do("eq", row + offset if offset else row)
    if offset:
        at = [Position(steps=((d, 1),)) for d in range(len(outer))] + [
            Position(start=min(offset, 0), steps=((rank - 2, 1),))
        ]
        return b.point("where", keep, b.load(x, (*outer, size, 1), at, 0), 0, dtype=x.dtype)
    return b.point("where", keep, x.reshape((*outer, n, 1)), 0, dtype=x.dtype)


def _nan_to_num(b: Builder, x: Expr, nan: Number | None = None, posinf: Number | None = None,
                neginf: Number | None = None) -> Expr:  # fmt: skip
    if x.dtype not in FLOATS:
        return x
    limits = torch.finfo(_torch(x))
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    result = x.do("isnan").where(nan or 0.0, x)
    result = result.do("eq", math.inf).where(high, result)
    return result.do("eq", -math.inf).where(low, result)


def _logaddexp(b: Builder, x: Expr, other: Expr) -> Expr:
    top = x.do("maximum", other)
    smooth = top + (-(x - other).do("abs")).do("exp").do("log1p")
    return x.do("eq", other).do("logical_and", x.do("isinf")).where(x, smooth)


def _xlogy(b: Builder, x: Operand, other: Operand) -> Expr:
    left, right = _cast(x, b.out_dtype), _cast(other, b.out_dtype)
    if not isinstance(left, Expr) or not isinstance(right, Expr):
        raise NotLowered
    value = left.do("eq", 0).where(0.0, left * right.do("log"))
    return right.do("isnan").where(right, value)


def _to(b: Builder, x: Expr, **_: Any) -> Expr:
    return _contiguous(b, x) if b.out_dtype == x.dtype else x.to(b.out_dtype)


def _clone(b: Builder, x: Expr, **_: Any) -> Expr:
    return b.point("to", x, dtype=x.dtype)


def _contiguous(b: Builder, x: Expr, **_: Any) -> Expr:
    return x if b.ins[0].stride() == b.outs[0].stride() else _clone(b, x)


def _dropout(b: Builder, x: Expr, p: float, train: bool) -> Expr:
    if train and p:
        raise NotLowered
    return x


# --- activations ---------------------------------------------------------------------------------------------------


def _between(x: Expr, low: Number, high: Number) -> Expr:
    return x.do("maximum", low).do("minimum", high)


def _leaky_relu(b: Builder, x: Expr, negative_slope: Number = 0.01) -> Expr:
    return (x > 0).where(x, x * negative_slope)


def _prelu(b: Builder, x: Expr, weight: Expr) -> Expr:
    if len(weight.shape) == 1 and weight.shape[0] > 1:
        weight = weight.reshape((weight.shape[0],) + (1,) * (len(x.shape) - 2))
    elif not x.shape:
        weight = weight.reshape(())
    return (x > 0).where(x, x * weight)


def _rrelu(b: Builder, x: Expr, lower: Number = 1 / 8, upper: Number = 1 / 3, training: bool = False,
           generator: object = None) -> Expr:  # fmt: skip
    if training:
        raise NotLowered
    return _leaky_relu(b, x, (lower + upper) / 2)


def _elu(b: Builder, x: Expr, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Expr:
    below = (x if input_scale == 1 else x * input_scale).do("expm1")
    below = below if alpha * scale == 1 else below * (alpha * scale)
    return (x > 0).where(x if scale == 1 else x * scale, below)


def _gelu(b: Builder, x: Expr, approximate: str = "none") -> Expr:
    if approximate == "none":
        return x * 0.5 * ((x * math.sqrt(0.5)).do("erf") + 1)
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.do("tanh") + 1)


def _softplus(b: Builder, x: Expr, beta: Number = 1, threshold: Number = 20) -> Expr:
    scaled = x if beta == 1 else x * beta
    smooth = scaled.do("exp").do("log1p")
    return (scaled > threshold).where(x, smooth if beta == 1 else smooth / beta)


def _glu(b: Builder, x: Expr, dim: int = -1) -> Expr:
    dim %= len(x.shape)
    half = x.shape[dim] // 2
    return x.slice(dim, 0, half) * x.slice(dim, half, half).do("sigmoid")


def _logit(b: Builder, x: Expr, eps: float | None = None) -> Expr:
    value = _float(b, x)
    value = value if eps is None else _between(value, eps, 1 - eps)
    return (value / (1 - value)).do("log")


POINTWISE_LOWERINGS: Mapping[str, Lowering] = {
    **{op: _unary(op) for op in (
        "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid")},
    "special_expm1": _unary("expm1"), "special_erf": _unary("erf"), "special_log1p": _unary("log1p"),
    **{op: _unary(op, floating=False) for op in ("neg", "abs", "sign", "floor", "ceil", "trunc", "square", "isnan",
                                                 "isinf", "bitwise_not")},
    **{op: _binary(op) for op in ("add", "mul", "maximum", "minimum", "fmod", "remainder", "floor_divide", "atan2",
                                  "bitwise_and", "bitwise_or", "bitwise_xor")},
    "__and__": _binary("bitwise_and"), "__or__": _binary("bitwise_or"), "__xor__": _binary("bitwise_xor"),
    **{op: _comparison(op) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{op: _logical(op) for op in ("logical_and", "logical_or", "logical_xor", "logical_not")},
    "sub": _binary("sub"), "rsub": lambda b, x, other, alpha=1: _binary("sub")(b, other, x, alpha),
    "div": _div, "true_divide": _div, "pow": _pow, "where": _where,
    "masked_fill": lambda b, x, mask, value: b.point("where", truth(mask), _cast(value, x.dtype), x, dtype=x.dtype),
    "clamp": _clamp, "clip": _clamp, "lerp": _lerp, "addcmul": _addcmul,
    "addcdiv": _addcdiv, "round": _round, "diag": _diag, "diag_embed": _diag_embed,
    "tril": lambda b, x, diagonal=0: _triangle(b, x, "le", diagonal),
    "triu": lambda b, x, diagonal=0: _triangle(b, x, "ge", diagonal), "nan_to_num": _nan_to_num,
    "clamp_min": _clamp, "clamp_max": _clamp, "logaddexp": _logaddexp, "xlogy": _xlogy,
    "isfinite": lambda b, x: x.do("isnan").do("logical_or", x.do("isinf")).do("logical_not"),
    "hypot": lambda b, x, other: (x * x + other * other).do("sqrt"), "frac": lambda b, x: x - x.do("trunc"),
    "sgn": lambda b, x: x.do("sign"), "logit": _logit,
    "to": _to, "_to_copy": _to, "type_as": _to, "clone": _clone, "contiguous": _contiguous, "lift_fresh_copy": _clone,
    **dict.fromkeys(("detach", "detach_", "alias", "lift_fresh"), lambda b, x: x),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), _dropout),
    "multiply": _binary("mul"), "subtract": _binary("sub"), "divide": _div, "absolute": _unary("abs", floating=False),
    "negative": _unary("neg", floating=False), "arctan2": _binary("atan2"), "greater": _comparison("gt"),
    "greater_equal": _comparison("ge"), "less": _comparison("lt"), "less_equal": _comparison("le"),
    "not_equal": _comparison("ne"),
    "relu": lambda b, x: x.do("maximum", 0), "relu6": lambda b, x: _between(x, 0, 6),
    "hardtanh": lambda b, x, min_val=-1, max_val=1: _between(x, min_val, max_val),
    "hardsigmoid": lambda b, x: _between(x + 3, 0, 6) / 6, "hardswish": lambda b, x: x * _between(x + 3, 0, 6) / 6,
    "leaky_relu": _leaky_relu, "prelu": _prelu, "_prelu_kernel": _prelu, "rrelu": _rrelu, "elu": _elu,
    "celu": lambda b, x, alpha=1: _elu(b, x, alpha, 1, 1 / alpha),
    "selu": lambda b, x: _elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "gelu": _gelu, "silu": lambda b, x: x / ((-x).do("exp") + 1),
    "mish": lambda b, x: x * x.do("exp").do("log1p").do("tanh"), "softplus": _softplus,
    "log_sigmoid": lambda b, x: x.do("minimum", 0) - (-x.do("abs")).do("exp").do("log1p"),
    "softshrink": lambda b, x, lambd=0.5: (x > lambd).where(x - lambd, (x < -lambd).where(x + lambd, x * 0)),
    "hardshrink": lambda b, x, lambd=0.5: (x >= -lambd).do("logical_and", x <= lambd).where(0, x),
    "threshold": lambda b, x, threshold, value: (x <= threshold).where(value, x), "glu": _glu,
}  # fmt: skip
