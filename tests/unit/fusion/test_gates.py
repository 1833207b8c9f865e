"""Gated pairs are found as one kernel, and give what the module gives (see `fused`, which holds each against it)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fakes.matched import fused
from tilewright.facts.pattern import Choice, Pattern, without_idle

pytestmark = pytest.mark.each(3)


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def gates(function: Callable[..., Any], *args: Tensor) -> list[Pattern]:
    return [p for p in fused(function, *args).patterns if len(p.program.products) == 2]


def of_calls(x: Tensor, w: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.silu(x @ w) * F.linear(x, v, bias)


def of_halves(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    gate, up = F.linear(x, w, bias).chunk(2, -1)
    return F.gelu(gate) * up


def turned_round(x: Tensor, w: Tensor, residual: Tensor) -> Tensor:
    up, gate = (x @ w).split(4, -1)
    return up * torch.sigmoid(gate) + residual


def woven(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    y = F.linear(x, w, bias)
    return F.silu(y[..., 1::2]) * y[..., ::2]


X = rand(2, 3, 10)
FOUND = {
    of_calls: (X, rand(10, 4), rand(4, 10), rand(4)),
    of_halves: (X, rand(8, 10), rand(8)),
    turned_round: (X, rand(10, 8), rand(2, 3, 4)),
    woven: (X, rand(8, 10), rand(8)),
}


@pytest.mark.parametrize("function", FOUND)
def test_both_products_are_one_kernel_and_neither_is_written(function: Callable[..., Any]) -> None:
    matched = fused(function, *FOUND[function])
    (gate,) = [p for p in matched.patterns if len(p.program.products) == 2]
    program = gate.program
    assert program.domain == (6, 4) and [o.shape for o in program.operands[:3]] == [(6, 10), (10, 4), (10, 4)]
    assert {p.left.operand for p in program.products} == {"x0"}, "x comes once"
    recipe = tuple(Choice(pattern=p.id, point=()) for p in matched.patterns)
    assert [c.pattern for c in without_idle([matched.patterns], recipe)] == [gate.id], "others have nothing to do"
    assert len(matched.patterns) > 1, "but stay for whoever leaves it out"


def test_a_half_is_a_part_of_the_weight() -> None:
    (gate,) = gates(of_halves, *FOUND[of_halves])
    binds = [b for b in gate.matches[0].operands if b.node == "args_1"]
    assert [(b.split, b.order, b.part) for b in binds] == [((2, 4, 10), (0, 2, 1), 0), ((2, 4, 10), (0, 2, 1), 1)]
    assert [o.order for o in gate.program.operands[1:3]] == [(1, 0), (1, 0)], "it lies along K, as the weight does"
    (gate,) = gates(woven, *FOUND[woven])
    binds = [b for b in gate.matches[0].operands if b.node == "args_1"]
    assert [(b.split, b.order, b.part) for b in binds] == [((4, 2, 10), (1, 2, 0), 0), ((4, 2, 10), (1, 2, 0), 1)]


def kept(x: Tensor, w: Tensor, v: Tensor, *, which: str) -> tuple[Tensor, ...]:
    gate, up = x @ w, x @ v
    there = {"gate": gate, "up": up, "square": up.cumsum(0)}
    return F.silu(gate) * up, *(there[name] for name in which.split())


@pytest.mark.parametrize(("which", "written"), [("gate", 2), ("up", 2), ("gate up", 3), ("square", 2)])
def test_products_that_others_need_are_written_beside(which: str, written: int) -> None:
    matched = fused(functools.partial(kept, which=which), X, rand(10, 4), rand(10, 4) * 2)
    (gate,) = [p for p in matched.patterns if len(p.program.products) == 2]
    assert len(gate.program.outputs) == written and len(gate.matches[0].spared) == 3 - written
    recipe = tuple(Choice(pattern=p.id, point=()) for p in matched.patterns)
    busy = [c.pattern for c in without_idle([matched.patterns], recipe)]
    assert gate.id in busy and not [p for p in matched.patterns if p.id in busy and p.kind == "product" and p != gate]
    others = tuple(c for c in recipe if c.pattern != gate.id)
    left = [p for p in matched.patterns if p.id in {c.pattern for c in without_idle([matched.patterns], others)}]
    assert [p.kind for p in left].count("product") == 2, "one product, and one with its epilogue"


def test_halves_of_two_calls_are_equal_programs() -> None:
    def calls(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w)) * F.linear(x, v)

    def halves(x: Tensor, w: Tensor) -> Tensor:
        gate, up = F.linear(x, w).chunk(2, -1)
        return F.gelu(gate) * up

    (one,), (other,) = gates(calls, X, rand(4, 10), rand(4, 10) * 2), gates(halves, X, rand(8, 10))
    assert one.program == other.program


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x, w, v: (lambda y: F.silu(y) * (x @ v) * y.cumsum(0))(x @ w), (X, rand(10, 4), rand(10, 4) * 2)),
        (lambda x, w: (lambda y: (F.silu(y[..., :4]) * y[..., 4:], y))(x @ w), (X, rand(10, 8))),  # halves are kept
        (lambda x, y, w: F.silu(x @ w) * (y @ w), (X, rand(2, 3, 10) * 2, rand(10, 4))),  # of two left factors
        (lambda x, w: F.silu((x @ w)[..., :3]) * (x @ w)[..., 5:], (X, rand(10, 8))),  # not halves
        (lambda x, w: F.silu((x @ w)[..., :4]) * (x @ w)[..., 2:6], (X, rand(10, 8))),
        (lambda x, w: (lambda y: F.silu(y[..., :4]) * y[..., 4:] + y.sum(-1, keepdim=True))(x @ w), (X, rand(10, 8))),
        (lambda x, w: (lambda y: F.silu(y[:1]) * y[1:])(x @ w), (X, rand(10, 8))),  # halves of the rows
        (lambda x, w, v, u: (x @ w) * (x @ v) * (x @ u), (X, rand(10, 4), rand(10, 4) * 2, rand(10, 4) * 3)),
        (lambda x, w, v: (F.silu(x @ w) * (x @ v)).sum(-1), (X, rand(10, 4), rand(10, 4) * 2)),
    ],
)  # fmt: skip
def test_others_are_products_by_themselves(function: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    assert not gates(function, *args)


@pytest.mark.few(0)
@pytest.mark.parametrize("examples", [9, 25])
def test_halves_of_any_sizes(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        rows=st.lists(st.integers(1, 4), min_size=1, max_size=3), k=st.integers(2, 9), n=st.integers(2, 7),
        woven=st.booleans(), first=st.booleans(), bias=st.booleans(), transposed=st.booleans(),
    )  # fmt: skip
    def holds(rows: list[int], k: int, n: int, woven: bool, first: bool, bias: bool, transposed: bool) -> None:
        def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            y = x @ w if transposed else F.linear(x, w)
            y = y + b if bias else y
            halves = (y[..., ::2], y[..., 1::2]) if woven else y.chunk(2, -1)
            return torch.tanh(halves[0 if first else 1]) * halves[1 if first else 0]

        w = rand(k, 2 * n) if transposed else rand(2 * n, k)
        fused(forward, rand(*rows, k), w, rand(2 * n))  # holds what is found against the module

    holds()
