"""Sigmoid and what Mish multiplies by, without calls for rare numbers: on the host, with the hardware's approximation
of an inverse at its worst."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from fakes import scalars
from fakes.scalars import Float32
from tilewright.kernels.cuda.common import math as m


@pytest.fixture(autouse=True, params=[-1.0, 0.0, 1.0])
def on_the_host(monkeypatch, request):
    def approximated(x):
        with np.errstate(all="ignore"):
            found = np.float32(1.0 / np.float64(x.value)) * np.float32(1.0 + request.param * 2.0**-23)
        return Float32(0.0 if abs(found) < 2.0**-126 else found)  # subnormal results are zero

    def fma(a, b, c):
        with np.errstate(all="ignore"):
            return Float32(np.float64(a.value) * np.float64(b.value) + np.float64(c.value))

    def exp(x):
        with np.errstate(all="ignore"):
            return Float32(np.exp(np.float64(x.value)))

    scalars.patch(monkeypatch, m)
    monkeypatch.setattr(
        m, "cute", type("cute", (), {"arch": type("arch", (), {"rcp_approx": staticmethod(approximated)})})
    )
    monkeypatch.setattr(m, "_lib", type("lib", (), {"fma": staticmethod(fma), "exp": staticmethod(exp)}))
    monkeypatch.setattr(m, "select", lambda c, yes, no: yes if c else no)
    monkeypatch.setattr(m, "cast", lambda x, dtype: x)


def test_both_are_right_to_a_few_units_in_the_last_place():
    at = np.concatenate([np.linspace(-80, 80, 4001), np.linspace(-2, 2, 1001), [-1e-30, 0.0, 1e-30]]).astype(np.float32)
    for function, exact in (
        (m.sigmoid, lambda x: 1 / (1 + np.exp(-x))), (m.tanh_of_softplus, lambda x: np.tanh(np.log1p(np.exp(x)))),
    ):  # fmt: skip
        found = np.array([function(Float32(x), "f32").value for x in at], np.float64)
        truth = exact(at.astype(np.float64))
        assert np.abs(found / truth - 1).max() < 4 * 2.0**-23


def test_the_ends_are_where_torch_has_them():
    for x, sigmoid, factor in (
        (inf, 1.0, 1.0),
        (-inf, 0.0, 0.0),
        (nan, nan, nan),
        (-200.0, 0.0, 0.0),
        (200.0, 1.0, 1.0),
    ):
        found = [f(Float32(x), "f32").value for f in (m.sigmoid, m.tanh_of_softplus)]
        assert np.array_equal(found, [sigmoid, factor], equal_nan=True), x
