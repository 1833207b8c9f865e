"""Concatenation, stacking and strided slices in our vocabulary; what is better copied together stays a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from tilewright.frontend.trace import trace
from tilewright.ir.graph import Graph

pytestmark = pytest.mark.filterwarnings("ignore")


def agrees(function: Callable[..., Any], *args: Tensor, opaque: bool = False) -> Graph:
    """Trace, and compare the graph, node by node in float64, with the function; `opaque`: some call must stay."""
    module = Applies(function)
    graph = trace(module, args, {})
    assert any(n.op == "call" for n in graph.nodes) == opaque
    torch.testing.assert_close(GraphRun(graph, module)(*widened(args)), function(*widened(args)))
    return graph


X, Y = torch.randn(3, 8, 10), torch.randn(3, 8, 7)


@pytest.mark.parametrize("function", [
    lambda x, y: torch.cat((x, torch.exp(y)), -1), lambda x, y: torch.cat((x.exp(), x * 2), 1),
    lambda x, y: torch.cat(x.chunk(2, 1)[::-1], 1), lambda x, y: torch.stack((x, x + 1, x * 2), 1),
    lambda x, y: torch.stack((x, x.double()), -1), lambda x, y: torch.cat((x[..., :3], x[..., 3:]), -1),
    lambda x, y: x[..., 1::3] * 2, lambda x, y: x.transpose(1, 2)[..., ::2].exp(),
], ids=range(8))  # fmt: skip
def test_joins_and_strides(function: Callable[..., Tensor]) -> None:
    agrees(function, X, Y)


@pytest.mark.parametrize("function", [
    lambda x, y: torch.cat((x, x[:, :0]), 1), lambda x, y: torch.cat([y * i for i in range(5)], 1),
    lambda x, y: torch.cat((y, y.sum(2, keepdim=True), y), 2), lambda x, y: x[:, ::2] * 2,
], ids=["an empty part", "many parts", "three that differ", "steps over rows"])  # fmt: skip
def test_what_stays_torch(function: Callable[..., Tensor]) -> None:
    agrees(function, X, Y, opaque=True)


def test_what_is_the_same_everywhere_is_not_read() -> None:
    graph = agrees(lambda x: torch.cat((torch.zeros_like(x), x), 0), X, opaque=True)
    (load,) = [n for n in graph.nodes if n.op == "load"]
    assert {n.name: n.op for n in graph.nodes}[load.sources[0]] == "input"


def test_parts_of_one_value_lie_side_by_side() -> None:
    halves = agrees(lambda x: torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1), X)
    assert not [n for n in halves.nodes if n.op == "load"], "read where both lie, and in no place in vain"


def test_other_parts_are_read_where_they_lie() -> None:
    graph = agrees(lambda x, y: torch.cat((x.exp(), y), -1), X, Y)
    nodes = {n.name: n for n in graph.nodes}
    assert [nodes[n.sources[0]].op for n in graph.nodes if n.op == "load"] == ["input", "input"]
