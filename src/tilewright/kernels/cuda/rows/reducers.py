"""Reductions as (identity, block, merge, results) over states of CuTe scalars; deterministic and numerically stable.

A *state* is a tuple of scalars. `block` reduces the values that a thread holds at once, as a tree; `merge` joins two
states. Sums are therefore trees at the bottom, short chains in a thread, and trees again across threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import cutlass.cute.math as _lib
from cutlass import Float32, Int32, Int64

from ..common import math as m

Value = Any
State = tuple[Value, ...]
_LOWEST = {"i64": -(2**63), "i32": -(2**31), "i16": -(2**15), "i8": -128, "u8": 0, "bool": 0}
_HIGHEST = {"i64": 2**63 - 1, "i32": 2**31 - 1, "i16": 2**15 - 1, "i8": 127, "u8": 255, "bool": 1}


def tree(items: list[Value], join: Callable[[Value, Value], Value]) -> Value:
    """Join neighbours until one is left."""
    while len(items) > 1:
        pairs = [join(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = pairs + items[2 * len(pairs) :]
    return items[0]


def _masked(values: list[Value], valid: list[Value] | None, otherwise: Value) -> list[Value]:
    if valid is None:
        return values
    return [m.select(ok, v, otherwise) for v, ok in zip(values, valid, strict=True)]


def _add(a: Value, b: Value) -> Value:
    return a + b


LOG2_E = 1.44269502162933349609375  # log2(e) in fp32, and what that leaves
LOG2_E_REST = 1.9259629911266175e-08
EX2_BIAS = 4.9e-8  # mean relative error of ex2.approx over [-16, 0] with its sign turned; H200, 2026-11-20


@dataclass(frozen=True)
class Reducer:
    """What the skeleton needs to know of one reduction; `dtype` is the results', `source` the argument's."""

    op: str
    source: str
    dtype: str
    wide: bool = False  # positions need 64 bits

    @property
    def held(self) -> str:
        """The dtype in which the argument is reduced."""
        if self.op in ("any", "all"):
            return "i32"
        if self.op in ("moments", "softmax_stats"):
            return "f32"
        if self.source in m.FLOATS:
            return "f32"
        if self.op in ("sum", "prod"):
            return "f32" if self.dtype in m.FLOATS else "i64"
        return "i32" if self.source == "bool" else self.source

    @property
    def needs_positions(self) -> bool:
        return self.op in ("argmax", "argmin")

    @property
    def types(self) -> tuple[Any, ...]:
        """CuTe types of a state's components."""
        held = m.value_type(self.held)
        if self.needs_positions:
            return (held, Int64 if self.wide else Int32)
        if self.op == "moments":
            return (Float32, Float32, Float32)
        return (held, Float32) if self.op == "softmax_stats" else (held,)

    def prepare(self, value: Value) -> Value:
        """The argument as it is reduced."""
        if self.op in ("any", "all"):
            return m.cast(m.cast(value, "bool"), "i32")
        return m.cast(value, self.held)

    def identity(self) -> State:
        types = self.types
        if self.op == "moments":
            return (Float32(0.0),) * 3
        if self.op == "softmax_stats":
            return (Float32(-inf), Float32(0.0))
        if self.needs_positions:
            return (self._extreme(), types[1](2**63 - 1 if self.wide else 2**31 - 1))
        if self.op in ("max", "min"):
            return (self._extreme(),)
        return (types[0](1 if self.op in ("prod", "all") else 0),)

    def _extreme(self) -> Value:
        low = self.op in ("max", "argmax")
        if self.held == "f32":
            return Float32(-inf if low else inf)
        return self.types[0]((_LOWEST if low else _HIGHEST)[self.held])

    def block(self, values: list[Value], valid: list[Value] | None, positions: list[Value]) -> State:
        """The state of these values; those that are not valid count for nothing."""
        if self.op == "moments":
            return _block_moments(values, valid)
        if self.op == "softmax_stats":
            return self.exponentials(values, valid, decay)[0]
        identity = self.identity()
        values = _masked(values, valid, identity[0])
        if self.needs_positions:
            places = _masked([self.types[1](p) for p in positions], valid, identity[1])
            return tree(list(zip(values, places, strict=True)), self.merge)  # type: ignore[no-any-return]
        return (tree(values, self._join),)

    def exponentials(
        self, values: list[Value], valid: list[Value] | None, exp: Callable[[Value], Value]
    ) -> tuple[State, list[Value]]:
        """The state of softmax_stats, and of each value its exp, relative to the state's maximum."""
        highest = tree(_masked(values, valid, Float32(-inf)), self._join)
        shift = finite_shift(highest)
        terms = _masked([exp(v - shift) for v in values], valid, Float32(0.0))
        return (highest, tree(terms, _add)), terms

    def _join(self, a: Value, b: Value) -> Value:
        if self.op in ("sum",):
            return a + b
        if self.op == "prod":
            return a * b
        if self.op in ("max", "any", "softmax_stats"):
            return m.larger(a, b)
        return m.smaller(a, b)

    def merge(self, a: State, b: State) -> State:
        if self.op == "moments":
            return _merge_moments(a, b)
        if self.op == "softmax_stats":
            highest = self._join(a[0], b[0])
            shift = finite_shift(highest)
            return (highest, a[1] * rescale(a[0] - shift) + b[1] * rescale(b[0] - shift))
        if self.needs_positions:
            return _merge_places(self, a, b)
        return (self._join(a[0], b[0]),)

    def merge_all(self, states: list[State]) -> State:
        """One state of many. Sums of exponentials are scaled to the common maximum once, not at each level of a tree:
        errors of few scalings at its top would not average out."""
        if self.op != "softmax_stats":
            return tree(states, self.merge)  # type: ignore[no-any-return]
        highest = tree([s[0] for s in states], self._join)
        shift = finite_shift(highest)
        return (highest, tree([s[1] * rescale(s[0] - shift) for s in states], _add))

    def results(self, state: State) -> tuple[Value, ...]:
        """The reduction's results, as values of its dtype."""
        if self.op == "moments":
            return state[1:]
        if self.op == "softmax_stats":
            return state
        if self.needs_positions:
            return (m.cast(state[1], self.dtype),)
        return (m.cast(state[0], self.dtype),)


def _block_moments(values: list[Value], valid: list[Value] | None) -> State:
    zero, one = Float32(0.0), Float32(1.0)
    if valid is None:
        count, inverse = Float32(float(len(values))), Float32(1.0 / len(values))
    else:
        count = tree([m.select(ok, one, zero) for ok in valid], _add)
        inverse = one / m.select(count > zero, count, one)
    mean = tree(_masked(values, valid, zero), _add) * inverse
    squares = [(v - mean) * (v - mean) for v in values]
    return (count, mean, tree(_masked(squares, valid, zero), _add))


def _merge_places(reducer: Reducer, a: State, b: State) -> State:
    """NaN wins, then the extremum, then the first position."""
    beyond = b[0] > a[0] if reducer.op == "argmax" else b[0] < a[0]
    same = b[0] == a[0]
    if reducer.held == "f32":
        a_nan, b_nan = a[0] != a[0], b[0] != b[0]
        beyond = m.either(beyond, m.both(b_nan, m.negated(a_nan)))
        same = m.either(same, m.both(b_nan, a_nan))
    take = m.either(beyond, m.both(same, b[1] < a[1]))
    return (m.select(take, b[0], a[0]), m.select(take, b[1], a[1]))


def decay(x: Value) -> Value:
    """exp(x) for x <= 0 in three instructions. Its relative error grows as |x| x 2^-24, which exp(x) more than makes up
    for in a sum whose largest term is 1; the second constant keeps that error free of bias."""
    return _lib.exp2(_lib.fma(x, Float32(LOG2_E), x * Float32(LOG2_E_REST)), fastmath=True)


def rescale(x: Value) -> Value:
    """decay(x) for what was summed already, without its bias: `ex2.approx` errs by -4.9e-8 on average, as the exp of a
    softmax's numerator does too. One such factor in a term cancels against the numerator; one more a merge does not
    (five made rows 2.3e-7 too large). exp(0) stays 1."""
    factor = decay(x)
    return _lib.fma(factor, Float32(EX2_BIAS), factor)


def finite_shift(highest: Value) -> Value:
    """The maximum, or 0 where it is -inf: exp(-inf - 0) is 0 where exp(-inf - -inf) would be NaN."""
    return m.select(highest == Float32(-inf), Float32(0.0), highest)


def _merge_moments(a: State, b: State) -> State:
    """Chan, Golub and LeVeque 1979: counts, means and sums of squared deviations of two parts."""
    count = a[0] + b[0]
    share = b[0] / m.select(count > Float32(0.0), count, Float32(1.0))
    delta = b[1] - a[1]
    return (count, a[1] + delta * share, a[2] + b[2] + delta * delta * a[0] * share)
