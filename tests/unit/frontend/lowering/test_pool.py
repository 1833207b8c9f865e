"""Pooling in our vocabulary: what torch computes, whatever the setting; and producers that move into the windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from tilewright.frontend.trace import trace
from tilewright.ir.graph import Graph

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]
INF, NAN = float("inf"), float("nan")


def agrees(function: Callable[..., Any], *args: Tensor, opaque: bool = False) -> Graph:
    """Trace, and compare the graph, node by node in float64, with the function; `opaque`: some call must stay."""
    module = Applies(function)
    graph = trace(module, args, {})
    assert any(n.op == "call" for n in graph.nodes) == opaque
    torch.testing.assert_close(GraphRun(graph, module)(*widened(args)), function(*widened(args)), equal_nan=True)
    return graph


def image(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("settings", [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 1, "padding": 1}, {"kernel_size": (3, 2), "stride": (2, 1)},
    {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": (1, 2)},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, {"kernel_size": (7, 9)},
], ids=str)  # fmt: skip
def test_max(settings: dict[str, Any]) -> None:
    agrees(lambda x: F.max_pool2d(x, **settings), image(2, 3, 7, 10))


@pytest.mark.parametrize("settings", [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 1, "padding": 1},
    {"kernel_size": 3, "stride": 1, "padding": 1, "count_include_pad": False},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "ceil_mode": True, "count_include_pad": False},
    {"kernel_size": 3, "divisor_override": 4}, {"kernel_size": (7, 10), "padding": (3, 2), "count_include_pad": False},
], ids=str)  # fmt: skip
def test_average(settings: dict[str, Any]) -> None:
    agrees(lambda x: F.avg_pool2d(x, **settings), image(2, 3, 7, 10))


@pytest.mark.parametrize("function", [
    lambda x: F.max_pool1d(x[0, 0], 3, 2, 1), lambda x: F.avg_pool1d(x[0, 0], 3), lambda x: F.max_pool3d(x[0], 2, 1),
    lambda x: F.avg_pool3d(x, (1, 2, 3), 2, (0, 1, 1), count_include_pad=False), lambda x: F.lp_pool2d(x[0], 2.0, 3),
    lambda x: F.adaptive_avg_pool3d(x, 1), lambda x: F.adaptive_max_pool2d(x[0], (3, 5)),
    lambda x: F.adaptive_max_pool1d(x[0, 0], 1), lambda x: F.adaptive_avg_pool2d(x[0], (6, 2)),
    lambda x: F.max_pool2d(x[0].transpose(1, 2), 3, 2, 1),
], ids=range(10))  # fmt: skip
def test_other_ranks_and_adaptive_windows_of_one_size(function: Callable[..., Tensor]) -> None:
    agrees(function, image(2, 3, 4, 6, 10))


def test_padding_never_wins_and_nan_always_does() -> None:
    x = image(1, 2, 6, 7)
    x[0, 0], x[0, 1, 2, 3] = -INF, NAN
    agrees(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    agrees(lambda x: F.max_pool2d(torch.sigmoid(x), 3, 2, 1), x)


@pytest.mark.parametrize("function", [
    lambda x: F.max_pool1d(x[0, 0], 3, 2, 1, return_indices=True),
    lambda x: F.max_pool2d(x[0], 2, return_indices=True),
    lambda x: F.max_pool2d(x[0], (3, 2), (2, 1), (1, 0), 2, return_indices=True),
    lambda x: F.max_pool2d(x[0], 3, 2, 1, ceil_mode=True, return_indices=True),
    lambda x: F.max_pool2d(F.relu(x[0]), (4, 6), return_indices=True),
    lambda x: F.max_pool3d(x, (2, 3, 4), (1, 2, 2), (1, 1, 2), (2, 1, 2), return_indices=True),
    lambda x: F.adaptive_max_pool2d(x[0], (3, 5), return_indices=True),
    lambda x: F.adaptive_max_pool2d(x[0], 1, return_indices=True),
    lambda x: F.adaptive_max_pool3d(x, (2, 1, 5), return_indices=True),
    lambda x: F.adaptive_max_pool1d(x[0, 0], 2, return_indices=True),
    lambda x: F.max_pool2d(x[0], 1, 2, return_indices=True), lambda x: F.max_pool2d(x[0], 2, return_indices=True)[1],
], ids=range(12))  # fmt: skip
def test_indices_by_torchs_rule(function: Callable[..., Any]) -> None:
    """Among equal values the first, among NaNs the last; of nothing but -inf the first that is not padding."""
    x = image(2, 3, 4, 6, 10)
    agrees(function, x)
    few = x.mul(1.5).round()
    few[0, 0], few[0, 1], few[1, 1, :, 2:] = -INF, NAN, NAN
    few[1, 0, :, :2, :3], few[0, 2, 1, 3, 3:7] = -INF, INF
    agrees(function, few)


@pytest.mark.parametrize("function", [
    lambda x: F.adaptive_avg_pool2d(x, 4), lambda x: F.max_pool2d((x * 9).long(), 3, 1, 1),
], ids=["windows of two sizes", "whole numbers"])  # fmt: skip
def test_what_stays_torch(function: Callable[..., Any]) -> None:
    agrees(function, image(2, 3, 7, 10), opaque=True)


def loaded(graph: Graph) -> set[str]:
    """What is read through windows on the way to the result."""
    nodes, todo, found = {n.name: n for n in graph.nodes}, list(graph.outputs), set()
    while todo:
        node = nodes[todo.pop()]
        if node.op == "load":
            found.add(nodes[node.sources[0]].op)
        todo += node.sources
    return found


def test_cheap_producers_move_into_the_windows() -> None:
    scale, shift = image(3, 1, 1), image(3, 1, 1) + 2
    graph = agrees(lambda x, a, b: F.max_pool2d(F.relu(x * a + b), 3, 2, 1), image(2, 3, 7, 10), scale, shift)
    assert loaded(graph) == {"input"}
    both = agrees(lambda x, y: F.avg_pool2d(x * y, 2, 1, 1), image(2, 3, 7, 10), image(7, 10))
    assert loaded(both) == {"input"}


@pytest.mark.parametrize("function", [
    lambda x: F.max_pool2d(torch.erf(x).tanh(), 3, 1, 1),
    lambda x: ((y := x * 2), F.max_pool2d(y, 3, 1, 1)),
    lambda x: F.max_pool2d(x.softmax(1), 2),
    lambda x: F.max_pool2d(y := x * 2, 2) + y[..., :3, :5],
], ids=["dear", "returned", "of statistics", "read elsewhere"])  # fmt: skip
def test_other_producers_stay_outside(function: Callable[..., Any]) -> None:
    assert "input" not in loaded(agrees(function, image(2, 3, 7, 10)))
