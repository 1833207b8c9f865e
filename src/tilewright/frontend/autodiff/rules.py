"""Derivatives of pointwise operations: what each argument gets of the gradient of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..lowering.lower import Expr, Number

Operand = Expr | Number
Gradients = tuple[Expr | None, ...]  # one for each argument; None: it has no gradient


@dataclass(frozen=True, slots=True)
class Use:
    """One operation to be differentiated: its arguments and its result, as the backward pass has them, in the dtype in
    which gradients are computed. `label` is the torch operator that it is a part of."""

    args: Sequence[Operand]
    result: Expr
    label: str

    @property
    def x(self) -> Expr:
        """The only argument, or the first of two tensors."""
        first = self.args[0]
        assert isinstance(first, Expr)
        return first


Rule = Callable[[Use, Expr], Gradients]


def _unary(formula: Callable[[Expr, Expr, Expr], Expr]) -> Rule:
    """A rule from g, x and y (the result) to the gradient of x."""

    def rule(use: Use, g: Expr) -> Gradients:
        return (formula(g, use.x, use.result),)

    return rule


def _none(use: Use, g: Expr) -> Gradients:
    return (None,) * len(use.args)


def _sqrt(use: Use, g: Expr) -> Gradients:
    """A norm or deviation of nothing has the gradient 0, as torch has it; the square root itself has not."""
    y = use.result
    given = g / (y * 2.0)
    return (given if use.label in ("sqrt", "pow") else y.do("eq", 0.0).where(0.0, given),)


def _expm1(use: Use, g: Expr) -> Gradients:
    """In an activation that takes another branch for large numbers, these have no share, and must not count as inf."""
    given = g * (use.result + 1.0)
    return (given if use.label in ("expm1", "special_expm1") else g.do("eq", 0.0).where(0.0, given),)


def _div(use: Use, g: Expr) -> Gradients:
    _, b = use.args
    own = g / b
    return (own, -(own * use.result))


def _remainder(rounding: str) -> Rule:
    def rule(use: Use, g: Expr) -> Gradients:
        a, b = use.args
        ratio = a / b if isinstance(a, Expr) else g.builder.point("div", a, b)
        return (g, -(g * ratio.do(rounding)))

    return rule


def _pow(use: Use, g: Expr) -> Gradients:
    base, power = use.args
    if not isinstance(power, Expr):
        return ((use.x.do("pow", power - 1) * power) * g if power else None, None)
    if isinstance(base, Expr):
        slope = power * base.do("pow", power - 1.0)
        grows = use.result * base.do("log")
        still = base.do("eq", 0.0).do("logical_and", power.do("ge", 0.0))
        return (power.do("eq", 0.0).where(0.0, g * slope), g * still.where(0.0, grows))
    return (None, g * use.result * (math.log(base) if base > 0 else 0.0))


def _atan2(use: Use, g: Expr) -> Gradients:
    y, x = use.args
    square = [v.do("square") if isinstance(v, Expr) else v * v for v in (y, x)]
    total = g.builder.point("add", square[0], square[1])
    return (g * x / total, -(g * y / total))


# At a bound of theirs these are flat; `clamp` and what torch writes with it still has the slope 1 there.
_FLAT_AT_BOUNDS = frozenset({"relu", "relu6", "hardtanh", "hardsigmoid", "hardswish"})

# Smooth functions, written with a kink of `maximum` or `minimum` at 0 and another one that makes up for it.
_SMOOTH = frozenset({"log_sigmoid", "binary_cross_entropy_with_logits"})


def _extremum(sign: str) -> Rule:
    """Of `maximum` (sign "gt") or `minimum` ("lt"): at a tie of two tensors each gets half."""

    def rule(use: Use, g: Expr) -> Gradients:
        a, b = use.args
        if isinstance(a, Expr) and isinstance(b, Expr):
            tie = a.do("eq", b)
            share = tie.where(g * 0.5, g)
            return (
                tie.do("logical_or", a.do(sign, b)).where(share, 0.0),
                tie.do("logical_or", b.do(sign, a)).where(share, 0.0),
            )
        x, bound = (a, b) if isinstance(a, Expr) else (b, a)
        assert isinstance(x, Expr)
        beyond = x.do(sign if use.label in _FLAT_AT_BOUNDS else {"gt": "ge", "lt": "le"}[sign], bound)
        mine = beyond.where(x.do("eq", bound).where(g * 0.5, g) if use.label in _SMOOTH else g, 0.0)
        return (mine, None) if x is a else (None, mine)

    return rule


_LN2, _LN10 = math.log(2.0), math.log(10.0)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("sign", "floor", "ceil", "round", "trunc", "floor_divide", "isnan", "isinf", "logical_not", "bitwise_not",
         "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
         "bitwise_xor"), _none),
    "neg": _unary(lambda g, x, y: -g),
    "abs": _unary(lambda g, x, y: g * x.do("sign")),
    "square": _unary(lambda g, x, y: g * (x * 2.0)),
    "sqrt": _sqrt,
    "rsqrt": _unary(lambda g, x, y: g * (y * y.do("square")) * -0.5),
    "reciprocal": _unary(lambda g, x, y: -(g * y.do("square"))),
    "exp": _unary(lambda g, x, y: g * y),
    "exp2": _unary(lambda g, x, y: g * y * _LN2),
    "expm1": _expm1,
    "log": _unary(lambda g, x, y: g / x),
    "log2": _unary(lambda g, x, y: g / (x * _LN2)),
    "log10": _unary(lambda g, x, y: g / (x * _LN10)),
    "log1p": _unary(lambda g, x, y: g / (x + 1.0)),
    "sin": _unary(lambda g, x, y: g * x.do("cos")),
    "cos": _unary(lambda g, x, y: -(g * x.do("sin"))),
    "tan": _unary(lambda g, x, y: g * (y.do("square") + 1.0)),
    "asin": _unary(lambda g, x, y: g * (1.0 - x.do("square")).do("rsqrt")),
    "acos": _unary(lambda g, x, y: -(g * (1.0 - x.do("square")).do("rsqrt"))),
    "atan": _unary(lambda g, x, y: g / (x.do("square") + 1.0)),
    "sinh": _unary(lambda g, x, y: g * x.do("cosh")),
    "cosh": _unary(lambda g, x, y: g * x.do("sinh")),
    "tanh": _unary(lambda g, x, y: g * (1.0 - y.do("square"))),
    "asinh": _unary(lambda g, x, y: g * (x.do("square") + 1.0).do("rsqrt")),
    "acosh": _unary(lambda g, x, y: g * (x.do("square") - 1.0).do("rsqrt")),
    "atanh": _unary(lambda g, x, y: g / (1.0 - x.do("square"))),
    "erf": _unary(lambda g, x, y: g * (-x.do("square")).do("exp") * (2.0 / math.sqrt(math.pi))),
    "erfc": _unary(lambda g, x, y: g * (-x.do("square")).do("exp") * (-2.0 / math.sqrt(math.pi))),
    "sigmoid": _unary(lambda g, x, y: g * y * (1.0 - y)),
    "add": lambda use, g: (g, g), "sub": lambda use, g: (g, -g),
    "mul": lambda use, g: (g * use.args[1], g * use.args[0]), "to": lambda use, g: (g,),
    "where": lambda use, g: (None, use.x.where(g, 0.0), use.x.where(0.0, g)),
    "div": _div, "fmod": _remainder("trunc"), "remainder": _remainder("floor"), "pow": _pow,
    "atan2": _atan2, "maximum": _extremum("gt"), "minimum": _extremum("lt"),
}  # fmt: skip
