"""Scans: traced, turned where flips surround them, shifted where a cat puts nothing in front, and fused."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.matched import fused, only
from fakes.program_interpreter import scan, scanned
from tilewright.ir.graph import Node
from tilewright.ir.program import SCANS
from tilewright.realise.torch_code import expression

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]


def exclusive(x: Tensor, dim: int = 1) -> Tensor:
    sums = torch.cumsum(x.narrow(dim, 0, x.size(dim) - 1), dim)
    return torch.cat((torch.zeros_like(x.select(dim, 0).unsqueeze(dim)), sums), dim)


X, MASK = torch.randn(6, 9), torch.rand(6, 9) < 0.5


@pytest.mark.parametrize("op", [torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_scan_alone(op: Callable[..., Tensor], dim: int) -> None:
    program, scan = only(fused(lambda x: op(x, dim), X))
    assert (scan.op, program.reduced, scan.reverse, scan.exclusive) == (op.__name__, (dim % 2,), False, False)
    assert len(program.body) == 1


def test_producers_and_consumers_join() -> None:
    program, _scan = only(fused(lambda x, m: torch.relu(torch.cumsum(x * m, 1) + x), X, MASK))
    assert len(program.operands) == 2 and program.body[0].op in ("mul", "to") and program.body[-1].op == "maximum"


def test_flips_make_a_reverse_scan() -> None:
    matched = fused(lambda x: torch.cumsum(x.flip(1), 1).flip(1), X)
    program, scan = only(matched)
    assert scan.reverse and len(program.body) == 1 and matched.patterns[0].title == "reverse cumsum"


def test_flips_go_through_pointwise_operations() -> None:
    _program, scan = only(fused(lambda x, w: (torch.exp(torch.cumsum(x.flip(1) * w, 1)) * 2.0).flip(1),
                               X.bfloat16(), torch.randn(6, 1)))  # fmt: skip
    assert scan.reverse


def test_flips_along_another_dimension_stay() -> None:
    matched = fused(lambda x: torch.cumsum(x.flip(0), 1).flip(0), X)
    assert only(matched)[1].reverse is False
    matched = fused(lambda x: torch.cumsum(x.flip(1), 1), X)
    assert [p.program.scan is not None for p in matched.patterns] == [True]
    assert matched.unmatched == ("aten.flip.default: no skeleton",)


def test_two_flips_alone_are_a_copy() -> None:
    assert fused(lambda x: x.flip(1).flip(1), X).patterns == ()


def test_nothing_in_front_makes_an_exclusive_scan() -> None:
    matched = fused(exclusive, X)
    program, scan = only(matched)
    assert scan.exclusive and program.domain == (6, 9) and matched.patterns[0].title == "exclusive cumsum"
    assert only(fused(lambda x: exclusive(x, 0), X.half()))[1].exclusive
    product = lambda x: torch.cat([torch.ones(1, 9), torch.cumprod(x[:-1] * 2.0, 0)])  # noqa: E731
    assert only(fused(product, X))[1].exclusive


@pytest.mark.parametrize("front", [lambda x: torch.ones_like(x[:, :1]), lambda x: torch.zeros_like(x[:, :2]),
                                   lambda x: x[:, :1]])  # fmt: skip
def test_something_in_front_is_a_cat(front: Callable[[Tensor], Tensor]) -> None:
    matched = fused(lambda x: torch.cat((front(x), torch.cumsum(x[:, :-1], 1)), 1), X)
    assert any("aten.cat" in line for line in matched.unmatched)


def test_integers_and_halves_keep_torch_types() -> None:
    assert only(fused(lambda x: torch.cumsum(x, 1), MASK))[1].dtype == "i64"
    program, scan = only(fused(lambda x: torch.cumsum(x, 1), X.half()))
    assert scan.dtype == "f32" and program.outputs[0].dtype == "f16"


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("op", [torch.cummax, torch.cummin])
def test_extrema_and_their_positions_are_one_scan(op: Callable[..., Any], dim: int) -> None:
    x = torch.randint(-3, 4, (6, 9)).float()
    program, scan = only(fused(lambda x: tuple(op(x * 2, dim)), x))
    assert scan.op == op.__name__ and [o.dtype for o in program.outputs] == ["f32", "i64"]
    program, _scan = only(fused(lambda x: op(x, dim).values + x, x))
    assert len(program.outputs) == 1
    program, scan = only(fused(lambda x: [t.flip(dim) for t in op(x.flip(dim), dim)], x))
    assert scan.reverse and len(program.outputs) == 2
    transposed = lambda x: op(x.flip(dim), dim)[1].flip(dim).neg() + (x.size(dim) - 1)  # noqa: E731
    assert only(fused(transposed, x))[1].reverse


def test_exclusive_extrema_and_logarithms_of_sums() -> None:
    for op, nothing in ((lambda x: x.cummax(1).values, -inf), (lambda x: x.cummin(1).values, inf),
                        (lambda x: x.logcumsumexp(1), -inf)):  # fmt: skip
        front = lambda x, op=op, n=nothing: torch.cat((torch.full_like(x[:, :1], n), op(x[:, :-1])), 1)  # noqa: E731
        assert only(fused(front, X))[1].exclusive
        wrong = lambda x, op=op: torch.cat((torch.zeros_like(x[:, :1]), op(x[:, :-1])), 1)  # noqa: E731
        assert "aten.cat.default" in " ".join(fused(wrong, X).unmatched)


def test_logarithms_of_sums() -> None:
    program, scan = only(fused(lambda x, m: torch.logcumsumexp(x.masked_fill(m, -1e4), 0).exp(), X, MASK))
    assert scan.op == "logcumsumexp" and program.reduced == (0,)
    assert only(fused(lambda x: torch.logcumsumexp(x.flip(1), 1).flip(1), X.half()))[1].reverse


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("op", list(SCANS))
def test_what_is_left_to_torch_is_the_same(op: str, reverse: bool, exclusive: bool) -> None:
    shape, a, g, place = (4, 7, 3), torch.rand(4, 7, 3).double(), torch.rand(7, 1).double(), torch.arange(7)[:, None]
    names = {"recurrence": ["g", "a"], "cummax": ["a", "place"], "cummin": ["a", "place"]}.get(op, ["a"])
    values = {"a": a, "g": g, "place": place}
    truth = scan(op, scanned(op, [values[n] for n in names], a.dtype, shape), 1, reverse=reverse, exclusive=exclusive)
    for item, wanted in enumerate(truth[: 1 if exclusive else 2]):
        node = Node(name="y", op=op, shape=shape, dtype="i64" if item else "f64", args=(*names, reverse, exclusive),
                    dims=(1,), item=item)  # fmt: skip
        text = expression(node, [], [*names, "", ""], "'cpu'")
        torch.testing.assert_close(eval(text, {"torch": torch, **values}), wanted)


def test_two_scans_or_a_reduction_are_kernels_of_their_own() -> None:
    for function in (lambda x: x.cumsum(0).cumsum(1), lambda x: torch.softmax(x, 1).cumsum(1),
                     lambda x: x.cumsum(1).sum(1)):  # fmt: skip
        assert len(fused(function, X).patterns) == 2


def test_a_scan_of_a_merged_dimension() -> None:
    program, _scan = only(fused(lambda x: torch.cumsum(x.reshape(6, 20), 1), torch.randn(6, 4, 5)))
    assert program.domain == (6, 20)
    matched = fused(lambda x, y: torch.cumsum((x + y).reshape(6, 20), 1), torch.randn(6, 4, 5), torch.randn(4, 1))
    assert [p.kind for p in matched.patterns] == ["pointwise", "scan"]
