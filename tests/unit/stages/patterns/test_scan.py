"""Scans: traced, turned where flips surround them, shifted where a cat puts nothing in front, and fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes.program_interpreter import GraphRun, widened
from tilewright.cell.trace import trace
from tilewright.facts.program import Program, Scan, validate
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.stages.patterns import match
from tilewright.stages.propose.case_code import case_code

pytestmark = pytest.mark.filterwarnings("ignore")


class Applies(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def fused(function: Callable[..., Any], *args: Tensor) -> Matched:
    """Match, check every Program, and compare what is fused, and what would be left to torch, with the module."""
    module = Applies(function)
    graph = trace(module, args, {})
    matched = match(graph, unsupported=lambda program: None, space=lambda program: Space(knobs=(), points=((),)),
                    tiny_bytes=0)  # fmt: skip
    for pattern in matched.patterns:
        validate(pattern.program)
        case_code(graph, [pattern], target="cpu")
    with torch.no_grad():
        run = GraphRun(graph, module.double(), patterns=matched.patterns)
        torch.testing.assert_close(run(*widened(args)), module(*widened(args)))
        alone = GraphRun(graph, module.double())
        torch.testing.assert_close(alone(*widened(args)), module(*widened(args)))
    return matched


def only(matched: Matched) -> tuple[Program, Scan]:
    """The single Program, which holds all, and its scan."""
    assert len(matched.patterns) == 1 and not matched.unmatched
    program = matched.patterns[0].program
    assert program.scan is not None and matched.patterns[0].kind == "scan"
    return program, program.scan


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


def test_two_scans_or_a_reduction_are_kernels_of_their_own() -> None:
    for function in (lambda x: x.cumsum(0).cumsum(1), lambda x: torch.softmax(x, 1).cumsum(1),
                     lambda x: x.cumsum(1).sum(1)):  # fmt: skip
        assert len(fused(function, X).patterns) == 2


def test_a_scan_of_a_merged_dimension() -> None:
    program, _scan = only(fused(lambda x: torch.cumsum(x.reshape(6, 20), 1), torch.randn(6, 4, 5)))
    assert program.domain == (6, 20)
    matched = fused(lambda x, y: torch.cumsum((x + y).reshape(6, 20), 1), torch.randn(6, 4, 5), torch.randn(4, 1))
    assert [p.kind for p in matched.patterns] == ["pointwise", "scan"]
