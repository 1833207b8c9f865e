"""facts.bands: where values are zero, against the values themselves; and that what can be seen is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from fakes.modules import Applies
from tilewright.frontend.trace import trace
from tilewright.ir.bands import Bands

pytestmark = pytest.mark.each(3)

X, Y = torch.rand(9, 7) + 1, torch.rand(9, 7) + 1
SQUARE, ROWS = torch.rand(2, 8, 8) + 1, torch.rand(8) + 1

CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], tuple[int | None, int | None]]] = {
    "tril": (lambda x: x.tril(), (X,), (None, 0)),
    "tril above": (lambda x: x.tril(2), (X,), (None, 2)),
    "triu below": (lambda x: x.triu(-3), (X,), (-3, None)),
    "band": (lambda x: x.tril(2).triu(-1), (X,), (-1, 2)),
    "turned": (lambda x: x.tril(2).triu(-1).mT, (X,), (-2, 1)),
    "batch": (lambda x: x.tril(-1), (SQUARE,), (None, -1)),
    "batch turned": (lambda x: x.triu(1).transpose(1, 2).contiguous(), (SQUARE,), (None, -1)),
    "through what keeps zeros": (lambda x: (-x.tril()).sinh().to(torch.float16) * 3, (X,), (None, 0)),
    "times a mask": (lambda x: x * torch.ones(9, 7).triu(1), (X,), (1, None)),
    "times another": (lambda x, y: x.tril(3) * y.triu(), (X, Y), (0, 3)),
    "sum": (lambda x, y: x.tril() + y.tril(2), (X, Y), (None, 2)),
    "sum of both": (lambda x, y: x.tril(-1) + y.triu(), (X, Y), (None, None)),
    "filled": (lambda x: x.masked_fill(torch.ones(9, 7).triu(1).bool(), 0.0), (X,), (None, 0)),
    "filled where zero": (lambda x: x.masked_fill(torch.ones(9, 7).tril(1) == 0, 0), (X,), (None, 1)),
    "filled with something": (lambda x: x.masked_fill(torch.ones(9, 7).triu(1).bool(), 1e-9), (X,), (None, None)),
    "not": (lambda x: x * (~torch.ones(9, 7).triu(1).bool()), (X,), (None, 0)),
    "and": (lambda x: torch.where(torch.ones(9, 7).tril(1).bool() & torch.ones(9, 7).triu(-1).bool(), x, 0), (X,),
            (-1, 1)),
    "positions": (lambda x: torch.where(torch.arange(9)[:, None] >= torch.arange(7), x, 0.0), (X,), (None, 0)),
    "positions, strictly": (lambda x: torch.where(torch.arange(7) - torch.arange(9)[:, None] > 1, x, 0.0), (X,),
                            (2, None)),
    "diag": (torch.diag, (ROWS,), (0, 0)),
    "diag above": (lambda v: torch.diag(v, 2), (ROWS,), (2, 2)),
    "diag below": (lambda v: torch.diag(v, -3), (ROWS,), (-3, -3)),
    "diag of rows": (lambda v: torch.diag_embed(v), (SQUARE[0],), (0, 0)),
    "causal softmax": (lambda x: (x @ x.mT / 3).masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf")).softmax(-1),
                       (SQUARE,), (None, 0)),
    "a window's softmax": (lambda x: torch.softmax(x * 2 + torch.full((8, 8), float("-inf")).triu(1), -1).triu(-3),
                           (SQUARE,), (-3, 0)),
    "masked with a number": (lambda x: x.masked_fill(torch.ones(8, 8).triu(1).bool(), -1e9).softmax(-1),
                             (SQUARE,), (None, None)),
    "negative scale": (lambda x: (x.masked_fill(torch.ones(8, 8).triu(1).bool(), float("inf")) * -2).exp(),
                       (SQUARE,), (None, None)),
    "divided by a sum": (lambda x: x.tril() / x.tril().sum(-1, keepdim=True), (SQUARE,), (None, 0)),
    "divided by a matrix": (lambda x, y: x.tril() / y, (X, Y), (None, None)),
    "exponential": (lambda x: x.tril().exp(), (X,), (None, None)),
    "divided": (lambda x, y: y / x.tril(), (X, Y), (None, None)),
    "row by row": (lambda x: torch.where(torch.arange(9)[:, None] > 3, x, 0.0), (X,), (None, None)),
    "cut": (lambda x: x.tril()[1:], (X,), (None, None)),
    "reshaped": (lambda x: x.tril().reshape(2, 2, 2, 8, 4)[..., 0], (torch.rand(2, 16, 8) + 1,), (None, None)),
    "reshaped in front": (lambda x: x.tril().reshape(1, 2, 8, 8), (SQUARE,), (None, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bands_are_seen(name: str) -> None:
    function, args, wanted = CASES[name]
    graph = trace(Applies(function), args, {})
    out = {n.name: n for n in graph.nodes}[graph.outputs[0]]
    rank = len(out.shape)
    bands = Bands({n.name: n for n in graph.nodes})
    assert bands.between(out.name, rank - 2, rank - 1) == wanted
    low, high = wanted
    assert bands.between(out.name, rank - 1, rank - 2) == (
        None if high is None else -high,
        None if low is None else -low,
    )
    value = function(*args).float()
    kept = value if high is None else value.tril(high)
    kept = kept if low is None else kept.triu(low)
    assert torch.equal(value, kept)


def _drawn(draw: Any, depth: int) -> Callable[[Tensor], Tensor]:
    kind = (
        draw(st.sampled_from(["x", "tril", "triu", "mul", "add", "sub", "where", "neg", "turn", "mask"]))
        if depth
        else "x"
    )
    if kind == "x":
        return lambda x: x
    one = _drawn(draw, depth - 1)
    number = draw(st.integers(-4, 4))
    if kind in ("tril", "triu"):
        return lambda x: getattr(torch, kind)(one(x), number)
    if kind == "neg":
        return lambda x: -one(x)
    if kind == "turn":
        return lambda x: one(x).mT
    if kind == "mask":
        above = draw(st.booleans())
        return lambda x: one(x).masked_fill(torch.ones(6, 6).triu(number).bool() == above, 0)
    other = _drawn(draw, depth - 1)
    if kind == "where":
        return lambda x: torch.where(torch.arange(6) - torch.arange(6)[:, None] <= number, one(x), other(x))
    return lambda x: getattr(torch, kind)(one(x), other(x))


@pytest.mark.few(0)
@pytest.mark.slow
@pytest.mark.parametrize("examples", [10, 30])
def test_no_element_lies_outside_of_its_band(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.data())
    def holds(data: Any) -> None:
        function = _drawn(data.draw, 3)
        x = torch.rand(6, 6) + 1
        graph = trace(Applies(lambda x: function(x) * 1.5), (x,), {})
        out = {n.name: n for n in graph.nodes}[graph.outputs[0]]
        low, high = Bands({n.name: n for n in graph.nodes}).between(out.name, 0, 1)
        value = function(x)
        kept = value if high is None else value.tril(high)
        kept = kept if low is None else kept.triu(low)
        assert torch.equal(value, kept), (low, high)

    holds()
