"""Windows: pooling with its neighbours is one kernel, laid out so that neighbours are computed side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.schedule import schedule
from tilewright.ir.validation import validate
from tilewright.realise.case_code import case_code
from tilewright.realise.torch_code import expression

pytestmark = pytest.mark.filterwarnings("ignore")


def fused(function: Callable[..., Any], *args: Tensor) -> Matched:
    """Match, check every Program, and compare what is fused with the function; all of it can also be left to torch."""
    module = Applies(function)
    graph = trace(module, args, {})
    matched = match(graph, unsupported=lambda program: None, space=lambda program: Space(knobs=(), points=((),)),
                    tiny_bytes=0)  # fmt: skip
    for pattern in matched.patterns:
        validate(pattern.program)
        schedule(pattern.program)
    for patterns in (matched.patterns, ()):
        case_code(graph, list(patterns), target="cpu")
        run = GraphRun(graph, module, patterns=patterns)
        torch.testing.assert_close(run(*widened(args)), function(*widened(args)))
    return matched


X = torch.randn(2, 3, 8, 11, generator=torch.Generator().manual_seed(0))


def test_a_pool_and_its_neighbours_are_one_kernel() -> None:
    def block(x: Tensor, scale: Tensor, other: Tensor) -> Tensor:
        return torch.sigmoid(F.max_pool2d(F.relu(x * scale), 3, 2, 1)) * other

    (pattern,) = fused(block, X, torch.rand(3, 1, 1), torch.randn(2, 3, 4, 6)).patterns
    program = pattern.program
    assert program.domain == (2, 3, 4, 3, 3, 6) and program.reduced == (3, 4), "neighbours lie innermost"
    assert pattern.title == "mul -> relu -> max_pool2d -> sigmoid -> mul" and pattern.kind == "column_reduce"
    assert sorted((o.shape, o.indexed) for o in program.operands) == [
        ((1, 3, 1, 1, 1, 1), False), ((2, 3, 4, 1, 1, 6), False), ((2, 3, 8, 11), True)]  # fmt: skip


def test_a_long_window_is_read_along_itself() -> None:
    (pattern,) = fused(lambda x: F.avg_pool1d(x, 20, 20), torch.randn(2, 3, 100)).patterns
    assert pattern.program.domain == (2, 3, 5, 20) and pattern.program.reduced == (3,)


def test_the_counts_of_a_ragged_average_are_computed_along_with_it() -> None:
    def ragged(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)

    matched = fused(ragged, X[..., :8])
    (pattern,) = matched.patterns
    assert not matched.unmatched
    assert len(pattern.program.operands) == 1, "of a square image too, where both sides count alike"


def test_what_two_pools_read_is_written_once() -> None:
    matched = fused(lambda x: F.max_pool2d((y := torch.exp(x)), 2) - F.avg_pool2d(y, 3, 2, 1)[..., :5], X)
    assert sorted(p.kind for p in matched.patterns) == ["column_reduce", "column_reduce"]


def test_pools_in_a_row_write_what_lies_between() -> None:
    matched = fused(lambda x: F.max_pool2d(F.relu(F.max_pool2d(x, 2)), 2), X)
    assert [p.title for p in matched.patterns] == ["max_pool2d -> relu", "max_pool2d"] and not matched.unmatched


def test_maxima_and_their_places_come_of_one_sweep() -> None:
    matched = fused(lambda x: F.max_pool2d(F.relu(x), 3, 2, 1, return_indices=True), X)
    (pattern,) = matched.patterns
    assert not matched.unmatched and len(schedule(pattern.program).passes) == 1
    assert {o.dtype for o in pattern.program.outputs} == {"f32", "i64"}
    (alone,) = fused(lambda x: F.max_pool2d(x, 2, return_indices=True)[1], X).patterns
    assert [o.dtype for o in alone.program.outputs] == ["i64"]


def test_windows_can_be_written_in_torch() -> None:
    """Where a kernel takes only the end of a call, the rest of it is left to torch, part by part."""
    graph = trace(Applies(lambda x: F.max_pool2d(torch.abs(x), 3, 2, 1)), (X,), {})
    nodes = {n.name: n for n in graph.nodes}
    written = {}
    for node in (n for n in graph.nodes if n.op in ("load", "inside")):
        text = expression(node, [nodes[name] for name in node.sources], ["x", "False"], "'cpu'")
        written[node.op] = eval(text, {"torch": torch, "x": X})
    for op, values in (("load", X), ("inside", torch.ones(2, 3, 8, 11, dtype=torch.bool))):
        wanted = F.pad(values, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2)
        assert torch.equal(written[op], wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_windows_are_summed_in_fp32(dtype: torch.dtype) -> None:
    (pattern,) = fused(lambda x: F.avg_pool2d(x, 2), X.to(dtype)).patterns
    assert {item.dtype for item in pattern.program.body if item.op == "sum"} == {"f32"}
