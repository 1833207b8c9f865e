"""Pointwise operations on CuTe scalars with torch's semantics; the vocabulary of a candidate's element functions.

Values of floating dtypes (f32, f16, bf16) are Float32, integers have their own type, bool is Boolean. Each function
takes values or Python literals and, last, the dtype of its result. Floating functions are libdevice's, the ones that
torch's own kernels call, so their error is torch's.
"""

from __future__ import annotations

import math as _math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
import cutlass.cute.math as _lib
from cutlass import BFloat16, Boolean, Float8E4M3FN, Float16, Float32, Int8, Int16, Int32, Int64, Uint8
from cutlass.cutlass_dsl import select_

Value = Any  # a CuTe scalar, or a literal

ELEMENT_TYPES: dict[str, Any] = {
    "f32": Float32, "f16": Float16, "bf16": BFloat16, "i64": Int64, "i32": Int32, "i16": Int16, "i8": Int8, "u8": Uint8,
    "bool": Boolean, "float8_e4m3fn": Float8E4M3FN,
}  # fmt: skip
FLOATS = frozenset({"f32", "f16", "bf16", "float8_e4m3fn"})
NARROW = FLOATS - {"f32"}


def value_type(dtype: str) -> Any:
    """The type in which a value of this dtype is held between loads and stores."""
    return Float32 if dtype in FLOATS else ELEMENT_TYPES[dtype]


def select(condition: Value, yes: Value, no: Value) -> Value:
    """yes where the condition holds, else no; both of one CuTe type."""
    return type(yes)(select_(condition, yes, no))


def cast(x: Value, dtype: str) -> Value:
    """x held as `dtype` without rounding to the narrow floating types (see `to`)."""
    wanted = value_type(dtype)
    if isinstance(x, bool | int | float):
        return _literal(x, wanted)
    if type(x) is wanted:
        return x
    if wanted is Boolean:
        return x != type(x)(0)
    if type(x) is Boolean:
        return select(x, wanted(1), wanted(0))
    if type(x) is Float32 and wanted is not Int64:
        return x.to(Int64).to(wanted)  # through i64, as torch does: narrow types wrap
    return x.to(wanted)


def lane_of(fragment: Value, lane: int, dtype: str) -> Value:
    """One element of a fragment in registers, as `cast` gives it. Of bf16 in a pair of them, in one instruction."""
    size = cute.size(fragment)
    if dtype != "bf16" or size % 2:
        return cast(fragment[lane], dtype)
    pair = cute.recast_tensor(fragment, Int32)[lane // 2]
    return (pair & Int32(-65536) if lane % 2 else pair << Int32(16)).bitcast(Float32)


def _literal(x: bool | int | float, wanted: Any) -> Value:
    if wanted is Boolean:
        return Boolean(bool(x))
    return Float32(float(x)) if wanted is Float32 else wanted(int(x))


def to(x: Value, dtype: str) -> Value:
    """torch's cast: rounds to the narrow floating types."""
    return stored(x, dtype).to(Float32) if dtype in NARROW else cast(x, dtype)


def stored(x: Value, dtype: str) -> Value:
    """x as the element type in memory."""
    held = cast(x, dtype)
    return held.to(ELEMENT_TYPES[dtype]) if dtype in NARROW else held


def _rank(x: Value) -> int:
    order = [Boolean, Uint8, Int8, Int16, Int32, Int64, Float32]
    if isinstance(x, bool):
        return 0
    if isinstance(x, int):
        return 1
    return len(order) - 1 if isinstance(x, float) else order.index(type(x))


def _common(*xs: Value) -> list[Value]:
    """The arguments in the widest of their types (integer literals follow the others)."""
    names = ["bool", "u8", "i8", "i16", "i32", "i64", "f32"]
    name = names[max(_rank(x) for x in xs)]
    if name == "i8" and any(type(x) is Uint8 for x in xs):
        name = "i16"
    if all(isinstance(x, bool | int | float) for x in xs):
        name = "f32" if name == "f32" else "i64"
    return [cast(x, name) for x in xs]


def _float_function(function: Callable[..., Value]) -> Callable[..., Value]:
    def apply(*args: Value) -> Value:
        *xs, dtype = args
        return cast(function(*(cast(x, "f32") for x in xs)), dtype)

    return apply


exp = _float_function(_lib.exp)
exp2 = _float_function(_lib.exp2)
expm1 = _float_function(_lib.expm1)
log = _float_function(_lib.log)
log2 = _float_function(_lib.log2)
log10 = _float_function(_lib.log10)
log1p = _float_function(_lib.log1p)
sin = _float_function(_lib.sin)
cos = _float_function(_lib.cos)
tan = _float_function(_lib.tan)
asin = _float_function(_lib.asin)
acos = _float_function(_lib.acos)
atan = _float_function(_lib.atan)
sinh = _float_function(_lib.sinh)
cosh = _float_function(_lib.cosh)
tanh = _float_function(_lib.tanh)
asinh = _float_function(_lib.asinh)
acosh = _float_function(_lib.acosh)
atanh = _float_function(_lib.atanh)
erf = _float_function(_lib.erf)
erfc = _float_function(_lib.erfc)
sqrt = _float_function(_lib.sqrt)
rsqrt = _float_function(_lib.rsqrt)
atan2 = _float_function(_lib.atan2)
reciprocal = _float_function(lambda x: Float32(1.0) / x)
div = _float_function(lambda x, y: x / y)


def _inverse(x: Value) -> Value:
    """1 / x for x from 1 up, infinity and NaN, within 1.5 units in the last place: four instructions, and no call for
    rare numbers, past which a thread that waits for its own results can't go on."""
    near = cute.arch.rcp_approx(x)
    better = _lib.fma(_lib.fma(-x, near, Float32(1.0)), near, near)
    return select(x < Float32(2.0**126), better, near)


def _tanh_of_softplus(x: Value) -> Value:
    """With e = exp(x) it is n / (n + 2) for n = e (e + 2): one exponential instead of three functions."""
    e = _lib.exp(select(x > Float32(20.0), Float32(20.0), x))
    n = _lib.fma(e, e, e + e)
    return n * _inverse(n + Float32(2.0))


sigmoid = _float_function(lambda x: _inverse(Float32(1.0) + _lib.exp(-x)))
tanh_of_softplus = _float_function(_tanh_of_softplus)

LOG2_E = 1.4426950408889634
# Of what ends in 16 bits: `ex2.approx` of a rounded product is off by (|x| + 2) 2^-24, subnormal results are zero.
approx_exp = _float_function(lambda x: _lib.exp2(x * Float32(LOG2_E), fastmath=True))
approx_sigmoid = _float_function(
    lambda x: cute.arch.rcp_approx(Float32(1.0) + _lib.exp2(x * Float32(-LOG2_E), fastmath=True))
)


def _divided(x: Value, y: Value) -> Value:
    """Within 2 units in the last place, in the whole range: 8 instructions, and no call for rare numbers."""
    text = "div.full.f32 {$w0}, {$r0}, {$r1};"
    return Float32(cute.arch.inline_ptx(text, write_only_types=[Float32], read_only_args=[x, y]))


approx_div = _float_function(_divided)


def _erf_beside_one(x: Value) -> Value:
    """Within 1e-6: Abramowitz and Stegun (1964), 7.1.26: 1 - P(t) exp(-x^2), t = 1 / (1 + p |x|)."""
    t = cute.arch.rcp_approx(_lib.fma(_lib.abs(x), Float32(0.3275911), Float32(1.0)))
    total = Float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = _lib.fma(total, t, Float32(coefficient))
    fading = _lib.exp2(x * x * Float32(-LOG2_E), fastmath=True)
    size = _lib.fma(-total * t, fading, Float32(1.0)).bitcast(Int32) & Int32(0x7FFFFFFF)
    return (size | (x.bitcast(Int32) & Int32(-0x80000000))).bitcast(Float32)


approx_erf = _float_function(_erf_beside_one)


@dataclass(frozen=True)
class Divisor:
    """What many are divided by: `head + rest` is the inverse of it times `scale`, to 40 bits.

    `rest` has head's sign and is not 0 where head is not, so that both terms of an infinite numerator agree. `near` is
    that inverse, rounded. None for `scale`: it is 1."""

    near: Value
    head: Value
    rest: Value
    scale: Value | None


def divisor(x: Value, dtype: str) -> Divisor:
    """For `quotient`, of any number: those whose inverse is subnormal or overflows are scaled first."""
    held = cast(x, "f32")
    size = _lib.abs(held)
    one, low, high = Float32(1.0), Float32(2.0**-64), Float32(2.0**64)
    scale = select(size < low, high, select(size > high, low, one))
    return _divisor(held * scale, scale)


def ordinary_divisor(x: Value, dtype: str) -> Divisor:
    """For `quotient`, of a number from 2^-64 to 2^64 (or NaN), such as the sum of a softmax."""
    return _divisor(cast(x, "f32"), None)


def _divisor(x: Value, scale: Value | None) -> Divisor:
    one, zero = Float32(1.0), Float32(0.0)
    near = one / x
    beyond = _lib.fma(-x, near, one) < zero  # rounded away from zero: take the number before
    head = select(beyond, (near.bitcast(Int32) - Int32(1)).bitcast(Float32), near)
    rest = _lib.fma(-x, head, one) * head + head * Float32(2.0**-40)
    regular = both(_lib.abs(near) > zero, _lib.abs(near) < Float32(_math.inf))
    return Divisor(near, select(regular, head, near), select(regular, rest, near), scale)


def quotient(x: Value, by: Divisor, dtype: str) -> Value:
    """x over what `by` was made of, as accurate as a division, in two or three instructions."""
    held = cast(x, "f32")
    found = _lib.fma(held, by.head, held * by.rest)
    return cast(found if by.scale is None else found * by.scale, dtype)


def approx_quotient(x: Value, by: Divisor, dtype: str) -> Value:
    """The same within 1.5 units in the last place, in one instruction or two."""
    found = cast(x, "f32") * by.near
    return cast(found if by.scale is None else found * by.scale, dtype)


def _arithmetic(function: Callable[..., Value]) -> Callable[..., Value]:
    def apply(*args: Value) -> Value:
        *xs, dtype = args
        wide = "i32" if dtype in ("i16", "i8", "u8", "bool") else dtype  # wrapped to the narrow type afterwards
        return cast(function(*(cast(x, wide) for x in xs)), dtype)

    return apply


add = _arithmetic(lambda x, y: x + y)
sub = _arithmetic(lambda x, y: x - y)
mul = _arithmetic(lambda x, y: x * y)
square = _arithmetic(lambda x: x * x)
neg = _arithmetic(lambda x: -x)


def _is_float(x: Value) -> bool:
    return type(x) is Float32


def larger(x: Value, y: Value) -> Value:
    return cute.arch.fmax(x, y, nan=True) if _is_float(x) else select(x > y, x, y)


def smaller(x: Value, y: Value) -> Value:
    return cute.arch.fmin(x, y, nan=True) if _is_float(x) else select(x < y, x, y)


def _sign(x: Value) -> Value:
    one, zero = type(x)(1), type(x)(0)
    return select(x > zero, one, select(x < zero, -one, zero))


maximum = _arithmetic(larger)
minimum = _arithmetic(smaller)
abs = _arithmetic(lambda x: _lib.abs(x) if _is_float(x) else select(x < type(x)(0), -x, x))
sign = _arithmetic(_sign)


def _rounding(function: Callable[[Value], Value]) -> Callable[..., Value]:
    def apply(x: Value, dtype: str) -> Value:
        held = cast(x, dtype)
        return cast(function(held), dtype) if _is_float(held) else held

    return apply


floor = _rounding(_lib.floor)
ceil = _rounding(_lib.ceil)
trunc = _rounding(_lib.trunc)
round = _rounding(_lib.roundeven)


def _truncated_rem(x: Value, y: Value) -> Value:
    if _is_float(x):
        return Float32(_lib.rem(x, y))
    return x - _truncated_div(x, y) * y


def _truncated_div(x: Value, y: Value) -> Value:
    floored, zero = x // y, type(x)(0)
    inexact = floored * y != x
    return select(both(inexact, (x < zero) != (y < zero)), floored + type(x)(1), floored)


def both(a: Value, b: Value) -> Value:
    return Boolean(select_(a, b, Boolean(False)))


def either(a: Value, b: Value) -> Value:
    return Boolean(select_(a, Boolean(True), b))


def _remainder(x: Value, y: Value) -> Value:
    if not _is_float(x):
        return x - (x // y) * y
    rest, zero = _truncated_rem(x, y), Float32(0.0)
    return select(both(rest != zero, (rest < zero) != (y < zero)), rest + y, rest)


def _floor_divide(x: Value, y: Value) -> Value:
    if not _is_float(x):
        return x // y
    quotient = x / y
    rest = _remainder(x, y)
    near = (x - rest) / y
    floored = _lib.floor(near)
    exact = select(near - floored > Float32(0.5), floored + Float32(1.0), floored)
    return select(y == Float32(0.0), quotient, exact)


fmod = _arithmetic(_truncated_rem)
remainder = _arithmetic(_remainder)
floor_divide = _arithmetic(_floor_divide)

_POWERS: dict[float, Callable[[Value], Value]] = {
    0.0: lambda x: type(x)(1),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}
_FLOAT_POWERS: dict[float, Callable[[Value], Value]] = {
    0.5: _lib.sqrt,
    -0.5: _lib.rsqrt,
    -1.0: lambda x: Float32(1.0) / x,
    -2.0: lambda x: Float32(1.0) / (x * x),
}


def pow(x: Value, y: Value, dtype: str) -> Value:
    """x ** y; small literal exponents are products, as in torch. Integers take literal exponents from 0 to 3 alone."""
    base = cast(x, dtype)
    if isinstance(y, int | float):
        special = _POWERS.get(float(y)) or (_FLOAT_POWERS.get(float(y)) if _is_float(base) else None)
        if special is not None:
            return cast(special(base), dtype)
    if not _is_float(base):
        raise ValueError("an integer power takes a literal exponent from 0 to 3")
    return cast(_lib.pow(base, cast(y, "f32")), dtype)


def _comparison(function: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    def apply(x: Value, y: Value, dtype: str) -> Value:
        a, b = _common(x, y)
        if type(a) is Boolean:
            a, b = cast(a, "i32"), cast(b, "i32")
        return cast(Boolean(function(a, b)), dtype)

    return apply


eq = _comparison(lambda x, y: x == y)
ne = _comparison(lambda x, y: x != y)
lt = _comparison(lambda x, y: x < y)
le = _comparison(lambda x, y: x <= y)
gt = _comparison(lambda x, y: x > y)
ge = _comparison(lambda x, y: x >= y)


def _truth(function: Callable[..., Value]) -> Callable[..., Value]:
    def apply(*args: Value) -> Value:
        *xs, dtype = args
        return cast(function(*(cast(x, "bool") for x in xs)), dtype)

    return apply


def negated(x: Value) -> Value:
    return Boolean(select_(x, Boolean(False), Boolean(True)))


logical_and = _truth(both)
logical_or = _truth(either)
logical_xor = _truth(lambda x, y: Boolean(select_(x, negated(y), y)))
logical_not = _truth(negated)


def _bitwise(on_bool: Callable[..., Value], on_int: Callable[..., Value]) -> Callable[..., Value]:
    def apply(*args: Value) -> Value:
        *xs, dtype = args
        held = [cast(x, dtype) for x in xs]
        return on_bool(*held) if dtype == "bool" else cast(on_int(*held), dtype)

    return apply


bitwise_and = _bitwise(both, lambda x, y: x & y)
bitwise_or = _bitwise(either, lambda x, y: x | y)
bitwise_xor = _bitwise(lambda x, y: Boolean(select_(x, negated(y), y)), lambda x, y: x ^ y)
bitwise_not = _bitwise(negated, lambda x: x ^ type(x)(-1) if type(x) is not Uint8 else x ^ Uint8(255))


def isnan(x: Value, dtype: str) -> Value:
    held = cast(x, "f32")
    return cast(Boolean(held != held), dtype)


def isinf(x: Value, dtype: str) -> Value:
    return cast(Boolean(_lib.abs(cast(x, "f32")) == Float32(_math.inf)), dtype)


def where(condition: Value, yes: Value, no: Value, dtype: str) -> Value:
    return select(cast(condition, "bool"), cast(yes, dtype), cast(no, dtype))


def place(x: Value, size: int, dtype: str) -> Value:
    """The whole number x as a position below `size` in 32 bits; -1 where it is none."""
    held = cast(x, "i64")
    return select(both(held >= 0, held < size), held.to(Int32), Int32(-1))


def index(position: Value, dtype: str) -> Value:
    """The position along a dimension, which the skeleton passes in."""
    return cast(position, dtype)
