"""Slices of sums and products: made of slices, in one kernel, where nobody needs the whole."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.validation import validate
from tilewright.realise.case_code import case_code

pytestmark = pytest.mark.filterwarnings("ignore")
GEGLU = Path(__file__).parents[3] / "examples" / "problems" / "geglu.py"


def fused(module: Callable[..., Any], *args: Tensor) -> Matched:
    """Match, check every Program, and compare what is fused, and what would be left to torch, with the module."""
    module = module if isinstance(module, nn.Module) else Applies(module)
    graph = trace(module, args, {})
    matched = match(graph, unsupported=lambda program: None, space=lambda program: Space(knobs=(), points=((),)),
                    tiny_bytes=0)  # fmt: skip
    for pattern in matched.patterns:
        validate(pattern.program)
    for patterns in (matched.patterns, ()):
        case_code(graph, list(patterns), target="cpu")
        with torch.no_grad():
            run = GraphRun(graph, module.double(), patterns=patterns)
            torch.testing.assert_close(run(*widened(args)), module(*widened(args)))
    return matched


def domains(matched: Matched) -> list[tuple[int, ...]]:
    return [p.program.domain for p in matched.patterns]


X, B = torch.randn(6, 12), torch.randn(12)


def test_geglu_is_one_kernel() -> None:
    spec = importlib.util.spec_from_file_location("geglu", GEGLU)
    assert spec is not None and spec.loader is not None
    problem = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(problem)
    matched = fused(problem.Model(7), *problem.get_inputs(tokens=5, hidden=7))
    (pattern,) = matched.patterns
    assert pattern.program.domain == (5, 7) and len(pattern.program.outputs) == 1 and not matched.unmatched
    assert sorted(o.shape for o in pattern.program.operands) == [(1, 7), (1, 7), (5, 7), (5, 7)]
    assert pattern.title == "add -> gelu -> mul"


def test_three_parts_of_a_chain_that_broadcasts() -> None:
    def gates(x: Tensor, b: Tensor, column: Tensor) -> Tensor:
        one, two, three = ((x + b) * column).chunk(3, -1)
        return torch.sigmoid(one) * two + three

    (pattern,) = fused(gates, X, B, torch.randn(6, 1)).patterns
    assert pattern.program.domain == (6, 4)
    assert sorted(o.shape for o in pattern.program.operands) == [(1, 4)] * 3 + [(6, 1)] + [(6, 4)] * 3


def test_a_value_read_twice_is_sliced_once() -> None:
    def halves(x: Tensor) -> Tensor:
        left, right = (x * torch.sigmoid(x)).split(6, 1)
        return left * right

    (pattern,) = fused(halves, X).patterns
    assert [o.shape for o in pattern.program.operands] == [(6, 6), (6, 6)]


def test_a_part_of_a_part_and_a_selected_column() -> None:
    assert domains(fused(lambda x, b: torch.exp((x + b)[1:5, 2:9]), X, B)) == [(4, 7)]
    stacked = torch.randn(3, 2, 8)
    assert domains(fused(lambda x: torch.relu((x * 2.0).select(1, 0)) * (x * 2.0).select(1, 1), stacked)) == [(3, 8)]


def test_rotary_halves() -> None:
    def rotate(x: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        left, right = (x + b).chunk(2, -1)
        return left * cos - right * sin, right * cos + left * sin

    angle = torch.rand(6, 6)
    (pattern,) = fused(rotate, X, B, angle.cos(), angle.sin()).patterns
    assert pattern.program.domain == (6, 6) and len(pattern.program.outputs) == 2


@pytest.mark.parametrize("function", [
    lambda x, b: torch.exp((x + b)[:, :8]) * torch.sin((x + b)[:, 4:]),
    lambda x, b: torch.exp((x + b)[:, :8]) + torch.sin((x + b)[:4])[:1, :8],
], ids=["along one dimension", "along two"])  # fmt: skip
def test_parts_that_overlap_are_read_from_the_whole(function: Callable[..., Tensor]) -> None:
    assert (6, 12) in domains(fused(function, X, B))


@pytest.mark.parametrize("function", [
    lambda x, b: ((y := x + b), torch.exp(y[:, :6]) * y[:, 6:]),
    lambda x, b: ((y := x + b).sum(0), torch.exp(y[:, :6]) * y[:, 6:]),
    lambda x, b: torch.relu((y := x + b)[:, :6]) @ y[:, 6:].T,
    lambda x, b: (x + b).chunk(3, 1),
], ids=["returned", "reduced", "multiplied by torch", "its parts returned"])  # fmt: skip
def test_a_whole_that_is_needed_stays(function: Callable[..., Any]) -> None:
    assert (6, 12) in domains(fused(function, X, B))


def test_a_normalized_row_is_not_torn_apart() -> None:
    def normed(x: Tensor, b: Tensor) -> Tensor:
        left, right = F.layer_norm(x, (12,), b).chunk(2, -1)
        return left * torch.sigmoid(right)

    matched = fused(normed, X, B)
    assert [p.program.domain for p in matched.patterns] == [(6, 12), (6, 6)]


def test_halves_keep_torch_types() -> None:
    (pattern,) = fused(lambda x, b: torch.mul(*(x + b).chunk(2, -1)), X.bfloat16(), B.bfloat16()).patterns
    assert {o.dtype for o in pattern.program.operands} == {"bf16"}
