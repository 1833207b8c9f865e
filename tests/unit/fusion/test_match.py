"""Matching: what is fused, and that the Programs compute what the module does."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from fakes.program_interpreter import GraphRun, widened
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match, match_all
from tilewright.ir.graph import Graph, Node
from tilewright.ir.program import Program, Reduction
from tilewright.ir.schedule import schedule
from tilewright.ir.validation import validate

pytestmark = pytest.mark.filterwarnings("ignore")


class Applies(nn.Module):
    def __init__(self, function: Callable[..., Any], *children: nn.Module):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(children)

    def forward(self, *args: Any) -> Any:
        return self.function(*args, *self.parts)


def reads_nothing(program: Program) -> str | None:
    return None if program.operands else "nothing is read"


def no_knobs(program: Program) -> Space:
    return Space(knobs=(), points=((),))


def found(graph: Graph, **settings: Any) -> Matched:
    return match(graph, **{"unsupported": reads_nothing, "space": no_knobs, "tiny_bytes": 0, **settings})


def fused(module: nn.Module, *args: Any, **settings: Any) -> Matched:
    """Match, check every Program, and compare the fused module with the module, both in float64."""
    graph = trace(module, args, {})
    matched = found(graph, **settings)
    for pattern in matched.patterns:
        validate(pattern.program)
        schedule(pattern.program)
        assert {n for s in pattern.matches for n in s.nodes} == set(pattern.nodes)
    with torch.no_grad():
        reference = copy.deepcopy(module).double()
        run = GraphRun(graph, copy.deepcopy(reference), patterns=matched.patterns)
        ours, wanted = tree_leaves(run(*widened(args))), tree_leaves(reference(*widened(args)))
    for mine, value in zip(ours, wanted, strict=True):
        torch.testing.assert_close(mine, value, rtol=1e-9, atol=1e-9, equal_nan=True, check_dtype=False)
    for path, value in run.updates().items():
        torch.testing.assert_close(value, reference.state_dict()[path], rtol=1e-9, atol=1e-9)
    return matched


def shown(matched: Matched) -> list[tuple[str, str]]:
    return [(p.title, p.kind) for p in matched.patterns]


x = torch.randn(33, 17, generator=torch.Generator().manual_seed(0)) * 3
y = torch.randn(33, 17, generator=torch.Generator().manual_seed(1))
image = torch.randn(5, 6, 7, 9, generator=torch.Generator().manual_seed(2))


def test_a_chain_is_one_kernel() -> None:
    matched = fused(Applies(lambda a, b: F.gelu(a * 2 + b).clamp(-1, 1)), x, y)
    assert shown(matched) == [("scale -> add -> gelu -> clamp", "pointwise")] and not matched.unmatched
    program = matched.patterns[0].program
    assert program.domain == (33, 17) and [o.shape for o in program.operands] == [(33, 17)] * 2


def test_results_of_the_same_tensors_are_one_kernel() -> None:
    """Each reads both, and neither reads the other."""
    (both,) = fused(Applies(lambda a, b: (F.silu(a) * b, a + b)), x, y).patterns
    assert (len(both.program.operands), len(both.program.outputs)) == (2, 2)


def test_broadcast_operands_keep_size_one() -> None:
    program = (
        fused(Applies(lambda a, r, c, s: a * r + c[:, None] - s), x, y[0], y[:, 0], torch.tensor(2.0))
        .patterns[0]
        .program
    )
    assert [o.shape for o in program.operands] == [(33, 17), (1, 17), (33, 1), (1, 1)]


def test_masked_softmax_makes_its_mask_itself() -> None:
    scores = torch.randn(2, 3, 9, 9)

    def causal(a: torch.Tensor) -> torch.Tensor:
        return F.softmax((a / 3).masked_fill(torch.tril(torch.ones(9, 9)) == 0, -math.inf), -1)

    matched = fused(Applies(causal), scores)
    assert shown(matched) == [("scale -> tril -> eq -> mask -> softmax", "row_reduce")] and not matched.unmatched
    program = matched.patterns[0].program
    assert len(program.operands) == 1 and sum(s.op == "index" for s in program.body) == 2
    assert len(schedule(program).passes) == 1


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_softmax_over_any_dimension_takes_one_sweep_of_statistics(dim: int) -> None:
    matched = fused(Applies(lambda a: F.softmax(a, dim)), image)
    program = matched.patterns[0].program
    assert program.reduced == (dim,) and len(matched.patterns) == 1
    assert [r.op for r in program.body if isinstance(r, Reduction)] == ["softmax_stats"]


def test_norms_are_one_kernel_with_what_surrounds_them() -> None:
    block = Applies(lambda a, b, n: n(F.dropout(a, 0.0) + b) * 2, nn.LayerNorm(17)).eval()
    assert [k for _, k in shown(fused(block, x, y))] == ["row_reduce"]
    for norm in (nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True), nn.BatchNorm2d(6, track_running_stats=False)):
        matched = fused(Applies(lambda a, n: F.relu(n(a.sigmoid())) + a, norm), image)
        assert len(matched.patterns) == 1 and not matched.unmatched
    program = fused(Applies(lambda a, n: n(a), nn.GroupNorm(3, 6)), image).patterns[0].program
    assert program.domain == (5, 3, 2, 7, 9) and program.reduced == (2, 3, 4)


def test_batch_norm_in_training_updates_its_statistics_in_the_same_kernel() -> None:
    matched = fused(Applies(lambda a, n: n(a), nn.BatchNorm2d(6)), image)
    norm = next(p for p in matched.patterns if "batch_norm" in p.title)
    assert len(norm.program.outputs) == 3 and norm.program.reduced == (0, 2, 3)


def test_few_long_rows_stay_one_kernel() -> None:
    wide = torch.randn(4, 1 << 19)
    matched = fused(Applies(lambda a: F.layer_norm(a, (1 << 19,))), wide)
    assert [k for _, k in shown(matched)] == ["row_reduce"]
    whole = schedule(matched.patterns[0].program)
    assert whole.element_outputs and len(whole.passes) == 1


def test_a_value_used_by_several_sums_of_few_long_rows_is_not_written() -> None:
    def dice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        p = a.sigmoid()
        return 1 - 2 * (p * b).sum((1, 2)) / (p.square().sum((1, 2)) + b.square().sum((1, 2)) + 1e-6)

    matched = fused(Applies(dice), torch.randn(3, 700, 701), torch.rand(3, 700, 701))
    assert [(p.kind, len(p.program.outputs)) for p in matched.patterns] == [("row_reduce", 1)]


def test_statistics_of_another_tensor_come_first() -> None:
    def restyled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(a, (2, 3), keepdim=True)
        other_var, other_mean = torch.var_mean(b, (2, 3), keepdim=True)
        return (a - mean) * torch.sqrt((other_var + 1e-5) / (var + 1e-5)) + other_mean

    assert len(fused(Applies(restyled), image, torch.randn(5, 6, 4, 3)).patterns) == 2


def test_reductions_over_different_dimensions_are_a_chain_of_kernels() -> None:
    classes = torch.arange(33) % 17
    matched = fused(Applies(lambda a, t: F.cross_entropy(a, t)), x, classes)
    assert [k for _, k in shown(matched)] == ["row_reduce", "whole_reduce"]
    matched = fused(Applies(lambda a, b: torch.mean(1 - F.cosine_similarity(a, b))), x, y)
    assert shown(matched) == [("cosine_similarity -> rsub", "row_reduce"), ("mean", "whole_reduce")]


def test_one_read_serves_several_reductions_and_outputs() -> None:
    matched = fused(Applies(lambda a: (a.mean(1), a.var(1), a.amax(1), a.argmax(1), a.sin())), x)
    assert len(matched.patterns) == 1
    program = matched.patterns[0].program
    assert len(program.operands) == 1 and len(program.outputs) == 5
    assert [r.op for r in program.body if isinstance(r, Reduction)] == ["sum", "moments", "max", "argmax"]


def test_a_cheap_producer_of_two_kernels_is_computed_in_both() -> None:
    matched = fused(Applies(lambda a: ((a * 2).sum(0), (a * 2).prod(1))), x)
    assert len(matched.patterns) == 2 and all(len(p.program.outputs) == 1 for p in matched.patterns)


def test_a_dear_producer_of_two_kernels_is_written_once() -> None:
    def dear(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b = F.gelu(a.sin().cos().tan().exp())
        return b.sum(0), b.prod(1)

    assert sum(len(p.program.outputs) for p in fused(Applies(dear), x).patterns) == 3


def test_reading_through_views() -> None:
    permuted = Applies(lambda a, n: n(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * 2, nn.LayerNorm(6))
    matched = fused(permuted, image)
    assert len(matched.patterns) == 1 and matched.patterns[0].program.domain == (5, 6, 7, 9)
    matched = fused(Applies(lambda a: (a.reshape(-1) * 2).view(17, 33).relu() + 1), x)
    assert len(matched.patterns) == 1
    assert len(fused(Applies(lambda a: a.reshape(3, 187).relu().sum(1)), x).patterns) == 1
    assert len(fused(Applies(lambda a: a.repeat(2, 3) * 2), x).patterns) == 1


def test_the_same_tensor_read_two_ways_is_two_operands() -> None:
    square = torch.randn(9, 9)
    program = fused(Applies(lambda a: a + a.T), square).patterns[0].program
    assert len(program.operands) == 2
    two = fused(Applies(lambda a: (lambda b: b + b.T)(a.exp())), square)
    assert len(two.patterns) == 2  # no thread has both b[i, j] and b[j, i]


def test_an_outer_product_is_reduced_without_being_written() -> None:
    matched = fused(Applies(lambda a, b: (a[:, None] - b[None, :]).abs().sum(-1)), x, y[:7])
    assert shown(matched) == [("sub -> abs -> sum", "row_reduce")]
    assert matched.patterns[0].program.domain == (33, 7, 17)


def test_no_kernel_waits_for_itself() -> None:
    """What goes through torch in between can't be fused with both of its ends."""
    matched = fused(Applies(lambda a: (lambda b: b + torch.i0(b) * b.cos())(a.exp())), x)
    assert len(matched.patterns) == 2 and matched.unmatched == ("aten.i0.default: no skeleton",)


def test_slices_and_half_of_a_product_feed_a_gate() -> None:
    matched = fused(Applies(lambda a: (lambda u, v: F.silu(u) * v)(*a.chunk(2, -1))), torch.randn(33, 18))
    assert shown(matched) == [("silu -> mul", "pointwise")] and len(matched.patterns[0].program.operands) == 2


class Block(nn.Module):
    """A transformer block with pre-norm, fused heads and a gated MLP."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        b, t, w = a.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.first(a)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(w // self.heads)
        mask = torch.ones(t, t, dtype=torch.bool, device=a.device).triu(1)
        mixed = F.softmax(scores.masked_fill(mask, -math.inf), -1) @ v
        a = a + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        gate, value = self.up(self.second(a)).chunk(2, -1)
        return a + self.down(F.gelu(gate) * value)


def test_a_transformer_block() -> None:
    matched = fused(Block(24, 3), torch.randn(2, 7, 24))
    assert shown(matched) == [
        ("layer_norm", "row_reduce"), ("scale -> triu -> mask -> softmax", "row_reduce"),
        ("add -> rms_norm", "row_reduce"), ("gelu -> mul", "pointwise"), ("add", "pointwise"),
        ("linear", "product"), ("layer_norm -> linear", "product"), ("matmul", "product"), ("matmul", "product"),
        ("scale -> triu -> mask -> softmax -> matmul", "product"), ("linear", "product"), ("linear", "product"),
        ("linear -> add", "product"), ("gelu -> mul -> linear -> add", "product"),
        ("linear -> gelu -> mul", "product"),
        ("matmul -> scale -> triu -> mask -> softmax -> matmul -> clone", "attention")]  # fmt: skip
    assert {line.split(":")[0] for line in matched.unmatched} <= {"aten.clone.default"}


def test_layers_that_are_alike_share_a_pattern() -> None:
    layers = [nn.Linear(17, 17) for _ in range(5)]
    matched = fused(Applies(lambda a, *parts: [a := F.gelu(p(a) * 2) for p in parts][-1], *layers), x)
    assert [len(p.matches) for p in matched.patterns] == [5, 5], "by itself, and on the way out of the product"


def test_what_a_product_takes_on_its_way_out_no_other_takes_on_its_way_in() -> None:
    matched = fused(Applies(lambda a, p, q: q(F.gelu(p(a.exp()))), nn.Linear(17, 17), nn.Linear(17, 17)), x)
    assert [p.title for p in matched.patterns if p.kind == "product"] == [
        "linear -> gelu", "exp -> linear -> gelu", "linear"]  # fmt: skip


def test_numbers_go_on_and_equal_programs_of_two_cases_have_one_name() -> None:
    small, large = (trace(Applies(lambda a: F.gelu(a * 2).i0().relu()), (v,), {}) for v in (x, torch.randn(65, 17)))
    matched = found(small, first_id=7, case=2)
    assert [p.id for p in matched.patterns] == ["fused_7", "fused_8"] and matched.case == 2
    both = match_all([small, None, large, small], unsupported=reads_nothing, space=no_knobs, tiny_bytes=0)
    ids = [[p.id for p in m.patterns] for m in both]
    assert ids == [["fused_0", "fused_1"], [], ["fused_2", "fused_3"], ["fused_0", "fused_1"]]


def test_what_a_skeleton_refuses_is_left_with_its_reason() -> None:
    def no_gelu(program: Program) -> str | None:
        return "no erf here" if any(s.op == "erf" for s in program.body) else None

    matched = fused(Applies(lambda a: F.gelu(a.exp() + 1).relu() * 2), x, unsupported=no_gelu)
    assert all("gelu" not in p.title or not no_gelu(p.program) for p in matched.patterns)
    assert matched.unmatched == ("aten.gelu.default: no erf here",)


def test_what_gains_nothing_is_left() -> None:
    module = Applies(lambda a, b, c: (F.relu(a), b.half(), c.t().contiguous()))
    matched = found(trace(module, (x[:5], y[:5], y[:7]), {}), tiny_bytes=4096)
    assert not matched.patterns and len(matched.unmatched) == 3
    assert "alone, on 680 bytes" in matched.unmatched[0]


def test_empty_and_foreign_values_stay_with_torch() -> None:
    assert not fused(Applies(lambda a: a[:0].relu() * 2), x).patterns
    given = Node(name="z", op="input", shape=(3,), dtype="complex64")
    negative = Node(name="w", op="neg", shape=(3,), dtype="complex64", args=("z",))
    graph = Graph(nodes=(given, negative), outputs=("w",))
    assert not found(graph).patterns


def test_a_large_module_is_matched_in_seconds() -> None:
    layers = [Block(16, 2) for _ in range(6)]
    matched = fused(nn.Sequential(*layers), torch.randn(1, 5, 16))
    assert [len(p.matches) for p in matched.patterns] == [1, 6, 6, 6, 5, 1, 6, 1, 6, 6, 6, 6, 6, 5, 5, 1, 1, 6, 6]
