"""Division by what a row shares: the skeleton's own functions, on numpy's fp32 numbers."""

from __future__ import annotations

from fractions import Fraction
from math import inf, isfinite, nan
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.kernels.cuda.common import math as m

EDGES = [0.0, -0.0, inf, -inf, nan, 1e-45, -3e-41, 1.2e-38, -1e-30, 3.3e38, -1e30, 2.0**64, 2.0**-64, 1.0, 3.0, -7.0]


class Number:
    """An fp32 number with the operators that the functions use."""

    def __init__(self, value):
        self.value = np.float32(value.value if isinstance(value, Number) else value)

    def __mul__(self, other):
        return Number(self.value * other.value)

    def __truediv__(self, other):
        return Number(self.value / other.value)

    def __add__(self, other):
        return Number(self.value + other.value)

    def __neg__(self):
        return Number(-self.value)

    def __lt__(self, other):
        return bool(self.value < other.value)

    def __gt__(self, other):
        return bool(self.value > other.value)

    def bitcast(self, kind):
        return Bits(self.value.view(np.int32))


class Bits:
    def __init__(self, value):
        self.value = int(value)

    def __sub__(self, other):
        return Bits(self.value - other.value)

    def bitcast(self, kind):
        return Number(np.uint32(self.value % 2**32).view(np.float32))


def fma(a, b, c):
    """a * b + c, rounded once."""
    values = [float(x.value) for x in (a, b, c)]
    if not all(map(isfinite, values)):
        return Number(a.value * b.value + c.value)
    exact = Fraction(values[0]) * Fraction(values[1]) + Fraction(values[2])
    return Number(float(exact)) if exact else Number(a.value * b.value + c.value)


@pytest.fixture(autouse=True)
def on_numpy(monkeypatch):
    monkeypatch.setattr(m, "Float32", Number)
    monkeypatch.setattr(m, "Int32", Bits)
    monkeypatch.setattr(m, "select", lambda condition, yes, no: yes if condition else no)
    monkeypatch.setattr(m, "both", lambda a, b: a and b)
    monkeypatch.setattr(m, "cast", lambda x, dtype: x)
    monkeypatch.setattr(m, "_lib", SimpleNamespace(fma=fma, abs=lambda x: Number(abs(x.value))))


def off(found, wanted):
    """How many units in the last place the two are apart; of what is not finite, 0 if it is the same."""
    if not (np.isfinite(found) and np.isfinite(wanted)):
        return 0.0 if np.array_equal(found, wanted, equal_nan=True) else inf
    return abs(float(found) - float(wanted)) / float(max(np.spacing(abs(wanted)), np.float32(2.0**-126)))


@np.errstate(all="ignore")
def test_quotients_are_those_of_a_division_whatever_is_divided():
    some = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    numbers = [np.float32(x) for x in EDGES] + list(some) + list(some * np.float32(1e30))
    worst = {"quotient": 0.0, "approx_quotient": 0.0}
    for below in numbers:
        by = m.divisor(Number(below), "f32")
        for above in numbers:
            for name in worst:
                found = getattr(m, name)(Number(above), by, "f32").value
                apart = off(found, above / below)
                assert apart <= 2, (name, above, below, found)
                worst[name] = max(worst[name], apart)
    assert worst["quotient"] <= 1 <= worst["approx_quotient"], worst


@np.errstate(all="ignore")
def test_most_quotients_are_rounded_as_a_division_rounds():
    draw = np.random.default_rng(1)
    above, below = draw.standard_normal(3000).astype(np.float32), (1 + draw.random(3000) * 1000).astype(np.float32)
    pairs = [(Number(a), m.ordinary_divisor(Number(b), "f32")) for a, b in zip(above, below, strict=True)]
    same = sum(m.quotient(a, by, "f32").value == a.value / b for (a, by), b in zip(pairs, below, strict=True))
    near = sum(m.approx_quotient(a, by, "f32").value == a.value / b for (a, by), b in zip(pairs, below, strict=True))
    assert same == len(pairs) > 1.1 * near
