"""Transposes and changes of layout: patterns of their own or part of one, and results that lie as torch lays them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from fakes.realisers import cuda
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.graph import VIEWS, Graph
from tilewright.ir.validation import validate

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]
IMAGES, MATRIX, HEADS = torch.randn(4, 6, 5, 7), torch.randn(40, 24), torch.randn(2, 8, 12, 16)
SHUFFLED = torch.randn(2, 3, 8, 6)
LAST = IMAGES.to(memory_format=torch.channels_last)


def found(function: Callable[..., Any], *args: Tensor, left: int = 0) -> tuple[Graph, tuple[Pattern, ...]]:
    """The patterns, `left` operators aside; graph and Programs compute what the function does."""
    module = Applies(function)
    graph = trace(module, args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space, tiny_bytes=0)
    assert len(matched.unmatched) == left
    for pattern in matched.patterns:
        validate(pattern.program)
    for patterns in (matched.patterns, ()):
        got = GraphRun(graph, module, patterns=patterns)(*widened(args))
        torch.testing.assert_close(got, function(*widened(args)), check_dtype=False, rtol=1e-6, atol=1e-6)
    return graph, matched.patterns


def laid(graph: Graph, patterns: tuple[Pattern, ...]) -> list[tuple[int, ...]]:
    """Strides of the graph's outputs: that which a pattern writes, and views of it."""
    nodes = {n.name: n for n in graph.nodes}
    made = {}
    for pattern in patterns:
        for bind, output in zip(pattern.matches[0].outputs, pattern.program.outputs, strict=True):
            value = torch.empty(output.shape, device="meta").reshape(bind.split).permute(bind.order)
            made[bind.node] = value.view(nodes[bind.node].shape)
    for node in graph.nodes:
        if node.op in VIEWS and node.sources[0] in made:
            value = made[node.sources[0]]
            made[node.name] = value.permute(node.dims) if node.op == "permute" else value.view(node.shape)
    return [made[name].stride() for name in graph.outputs]


@pytest.mark.parametrize(("function", "arg"), [
    (lambda x: x.t().contiguous(), MATRIX), (lambda x: x.permute(0, 2, 3, 1).contiguous(), IMAGES),
    (lambda x: x.contiguous(), LAST), (lambda x: x.permute(0, 3, 1, 2).contiguous(), LAST),
    (lambda x: x.to(memory_format=torch.channels_last), IMAGES),
    (lambda x: x.contiguous(memory_format=torch.channels_last), IMAGES),
    (lambda x: x.permute(3, 1, 0, 2).reshape(7, 6, 20), IMAGES), (lambda x: F.pixel_unshuffle(x, 2), SHUFFLED),
    (lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 8, 3, 5)), (lambda x: x.mT.contiguous().view(-1), HEADS),
    (lambda x: torch.relu(x).permute(0, 2, 3, 1).contiguous() * 2, IMAGES),
    (lambda x: x.t().int().contiguous(), MATRIX),
], ids=range(12))  # fmt: skip
def test_a_change_of_layout_is_one_kernel(function: Callable[..., Tensor], arg: Tensor) -> None:
    graph, patterns = found(function, arg)
    assert len(patterns) == 1 and laid(graph, patterns) == [function(arg).stride()]


@pytest.mark.parametrize(("function", "args"), [
    (lambda x: x.clone(), (MATRIX,)), (lambda x: x.transpose(1, 2).reshape(2, 12, 128), (HEADS,)),
    (lambda x: x.int(), (LAST,)), (lambda x: x[:, :1].expand(40, 24).contiguous(), (MATRIX,)),
])  # fmt: skip
def test_copies_that_keep_what_is_innermost_stay_torch(function: Callable[..., Tensor], args: tuple[Tensor]) -> None:
    assert not found(function, *args, left=1)[1]


def test_results_lie_as_torch_lays_them() -> None:
    for function, args in (
        (lambda x, y: x.t() + y, (MATRIX, torch.randn(24, 40))), (lambda x: x.relu() + 1, (LAST,)),
        (lambda x, b: x * b[:, None, None] + x, (LAST, torch.randn(6))), (lambda x: (x + 1).t(), (MATRIX,)),
        (lambda x, y: y + x.t(), (MATRIX, torch.randn(24, 40))),
    ):  # fmt: skip
        graph, patterns = found(function, *args)
        assert len(patterns) == 1 and laid(graph, patterns) == [function(*args).stride()]


def test_what_lies_across_is_told() -> None:
    """An operand's order is what a kernel's space and its foresight go by."""
    _, (pattern,) = found(lambda x, y: y + x.t(), MATRIX, torch.randn(24, 40))
    orders = {o.order for o in pattern.program.operands}
    assert orders == {(), (1, 0)} and {o.transposed for o in pattern.program.operands} == {False, True}
    assert any(dict(p)["tile"] == "none" for p in pattern.space.points) and len(pattern.space.points) <= 8
    _, (straight,) = found(lambda x, y: y + x, MATRIX, MATRIX)
    assert straight.program.operands[0].order == () and straight.space != pattern.space
    assert straight.shape_class != pattern.shape_class


def test_two_layouts_are_two_kernels() -> None:
    graph, patterns = found(lambda x: (x + 1, (x + 1).t().contiguous()), MATRIX)
    assert sorted(p.program.domain for p in patterns) == [(24, 40), (40, 24)]
    assert laid(graph, patterns) == [(24, 1), (40, 1)]


def test_a_reduction_leaves_the_copy_of_its_result_to_another_kernel() -> None:
    graph, patterns = found(lambda x: torch.softmax(x, -1).transpose(1, 2).contiguous(), HEADS[0])
    assert [p.kind for p in patterns] == ["row_reduce", "pointwise"]
    assert laid(graph, patterns) == [(192, 12, 1)]
    _, (norm,) = found(lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (6,)).permute(0, 3, 1, 2), IMAGES)
    assert norm.kind == "column_reduce"


def test_values_that_only_kernels_read_lie_as_suits_them() -> None:
    _, patterns = found(lambda x: x.t().contiguous().softmax(-1), MATRIX)
    assert len(patterns) == 1 and patterns[0].kind == "column_reduce"
