"""Values between convolutions of ours lie channels-last, in a network that lies row-major outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fakes.facts import PROBLEM
from fakes.program_interpreter import GraphRun, widened
from fakes.realisers import H200
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts, Request
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.fusion.layouts import channels_last_between
from tilewright.ir.graph import Graph
from tilewright.ir.program import Program
from tilewright.run.learning import tries_layouts
from tilewright.run.matching import found_patterns, with_layouts

LAST = (0, 2, 3, 1)
WORK = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f16")


class Chain(nn.Module):
    """A stem, two convolutions with a batch norm each, the second with what is added, and what is returned."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.first, self.second = (nn.Conv2d(channels, channels, k, padding=k // 2, bias=False) for k in (3, 1))
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])
        self.last = nn.Conv2d(channels, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.norms[0](self.first(x)).relu()
        y = (self.norms[1](self.second(y)) + x).relu()
        result: Tensor = self.last(y)
        return result


def traced(module: nn.Module, x: Tensor) -> tuple[Graph, nn.Module]:
    module = module.eval().to(x.dtype)
    return trace(module, (x,), {}), module


def every(program: Program) -> bool:
    return True


IMAGE = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(0)).half()


def test_what_convolutions_read_and_what_that_is_computed_of_lies_channels_last() -> None:
    graph, module = traced(Chain(), IMAGE)
    made = channels_last_between(graph, every)
    assert made is not None and made.convolutions == 3
    moved = {n.name for n in made.graph.nodes if n.order == LAST}
    assert {"conv2d", "conv2d_1", "conv2d_2"} <= moved and not moved & {"x", "conv2d_3"}
    matched = match(made.graph, unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)), tiny_bytes=0)
    domains = {p.title: p.program.domain for p in matched.patterns if p.kind in ("convolution", "product")}
    assert domains == {
        "conv2d -> relu": (2, 9, 7, 16), "conv2d -> batch_norm -> relu": (2, 9, 7, 16),
        "conv2d -> batch_norm -> add -> relu": (126, 16), "conv2d": (2, 8, 7, 5),
    }  # fmt: skip
    with torch.no_grad():
        run = GraphRun(made.graph, module.double(), patterns=matched.patterns)
        torch.testing.assert_close(run(*widened((IMAGE,))), module(*widened((IMAGE,))))


@pytest.mark.parametrize(
    ("why", "module", "x", "supported"),
    [
        ("fp32", Chain(), IMAGE.float(), every),
        ("no kernel of ours", Chain(), IMAGE, lambda p: False),
        ("groups of channels that are not whole", Chain(12), IMAGE, every),
        ("channels-last already", Chain().to(memory_format=torch.channels_last),
         IMAGE.to(memory_format=torch.channels_last), every),
        ("its input alone is read", nn.Conv2d(3, 8, 3), IMAGE, every),
    ],
)  # fmt: skip
def test_others_stay_as_they_are(why: str, module: nn.Module, x: Tensor, supported: Callable[[Program], bool]) -> None:
    assert channels_last_between(traced(module, x)[0], supported) is None, why


class Seen(nn.Module):
    """What lies between two convolutions is returned, or read by another operator."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.one, self.two = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.one(x).relu()
        return self.two(y), y if self.how == "returned" else torch.sort(y, -1)[0]


@pytest.mark.parametrize("how", ["returned", "sorted"])
def test_what_others_see_lies_as_torch_lays_it(how: str) -> None:
    graph, _ = traced(Seen(how), torch.randn(2, 8, 9, 7).half())
    assert channels_last_between(graph, every) is None


def test_both_layouts_are_judged() -> None:
    """As algebra is: what the cases have instead of their graph, with a step that says so."""
    graph, _ = traced(Chain(64), torch.randn(8, 3, 56, 56).half())
    case = CaseFacts(inputs=(), outputs=(), work=WORK, graph=graph)
    (made,) = with_layouts((case,), H200)
    assert made.graph == graph and made.rewritten is not None and made.rewritten != graph
    assert made.algebra == ("3 convolutions read channels-last what kernels write for them",)
    domains = [
        {
            p.program.domain
            for p in found_patterns((replace(case, graph=g),), H200)[0].patterns
            if p.kind == "convolution"
        }
        for g in (graph, made.rewritten)
    ]
    assert (8, 64, 56, 56) in domains[0] - domains[1] and (8, 56, 56, 64) in domains[1] - domains[0]


def test_two_layouts_take_a_budget_that_has_room_for_both() -> None:
    request = Request(run="r", problem=PROBLEM, strategy="catalog", seed=0, budget_s=300.0)
    assert tries_layouts(request) and not tries_layouts(replace(request, budget_s=60.0))
    assert not tries_layouts(replace(request, algebra=False))
