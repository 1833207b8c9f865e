"""Discover: what a small module's operators take, what falls in patterns, what that could win; how it is shown."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from rich.console import Console

from fakes.cell import InProcessCell
from tilewright.facts.discovery import Discovery
from tilewright.facts.errors import UserError
from tilewright.facts.machine import Machine
from tilewright.facts.problem import Problem
from tilewright.judge import memories as memories
from tilewright.judge.discover import discovered
from tilewright.judge.reference_process import replay
from tilewright.judge.wire import messages as wire
from tilewright.report import calls_table, discovery_object, discovery_svg, parts_table

T = TypeVar("T")
MACHINE = Machine(
    target="cpu", device="test", driver="", torch="", dsl="", processors=1, cache_bytes=1 << 20,
    copy_bytes_per_s=1e9, matmul_flops_per_s=(("f32", 1e9),),
)  # fmt: skip
MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, 96)

    def forward(self, x, mask):
        x = self.proj(x).transpose(0, 1)
        return torch.softmax((x * 0.5).masked_fill(mask, -1e9), -1)

def get_inputs():
    return [torch.randn(4, 32, 64), torch.rand(4, 96) < 0.5]

def get_init_inputs():
    return []
"""


def discovery(source: str) -> Discovery:
    problem = Problem(name="small", path="/nowhere/small.py", source=source, target="cpu")
    cell = InProcessCell()
    cell.do(wire.LoadProblem(path=problem.path, source=source, cases=problem.cases, compiled=False))
    return discovered(problem, machine=MACHINE, reference=cell, seed=1)


@pytest.fixture(scope="module")
def found() -> Discovery:
    return discovery(MODULE)


def test_every_operator_has_its_time_and_its_floor(found: Discovery) -> None:
    labels = [c.label for c in found.graph.calls]
    assert labels == ["linear", "transpose", "mul", "masked_fill", "softmax"]
    assert {c.call for c in found.replay.calls} == {c.name for c in found.graph.calls}
    works = {c.call: c.work for c in found.replay.calls}
    linear = works["linear"]
    assert linear.matmul_flops == 2 * 4 * 32 * 64 * 96
    assert linear.bytes_moved == 4 * (4 * 32 * 64 + 64 * 96 + 96 + 4 * 32 * 96)
    assert works["transpose"].bytes_moved == 0 and works["softmax"].bytes_moved == 2 * 4 * 4 * 32 * 96
    floors = dict(found.floors_ns)
    assert floors["linear"] == pytest.approx(linear.matmul_flops) and floors["transpose"] == 0
    assert found.replay.module_ns > 0 and all(c.ns > 0 for c in found.replay.calls if c.call != "transpose")


def test_a_clock_that_was_held_up_once_takes_no_operators_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class HeldUp(replay._Cpu):
        rounds = 0

        def times(self, batch: str, calls: Sequence[Callable[[], Any]]) -> list[float]:
            nothing, *others = super().times(batch, calls)
            self.rounds += batch == "0"
            return [nothing + 1e9 * (batch == "0" and self.rounds == 5), *others]

    monkeypatch.setattr(replay, "_Cpu", HeldUp)
    calls = discovery(MODULE).replay.calls
    assert all(c.ns > 0 for c in calls if c.call != "transpose")


def test_the_parts_are_all_of_the_module(found: Discovery) -> None:
    parts = {p.title: p for p in found.parts}
    fused, linear = parts["scale -> mask -> softmax"], parts["linear"]
    assert set(fused.calls) == {"mul", "masked_fill", "softmax"} and (fused.pattern, fused.why) == ("fused_0", "")
    assert fused.floor_ns == pytest.approx(2 * 4 * 4 * 32 * 96 + 4 * 96), "read once, and written once, with the mask"
    assert (linear.pattern, linear.why, linear.rule) == ("", "no skeleton", "") and fused.rule == "rows: cpu/rows.h"
    assert parts["views"].calls == ("transpose",)
    assert sum(p.ns for p in found.parts) == pytest.approx(found.replay.calls_ns)
    assert found.covered == fused.share < 1
    assert [p.gain for p in found.parts] == sorted((p.gain for p in found.parts), reverse=True)


def test_what_is_shown(found: Discovery) -> None:
    shown = json.loads(json.dumps(discovery_object(found)))
    softmax = next(c for c in shown["calls"] if c["call"] == "softmax")
    assert softmax["gives"] == [{"dtype": "f32", "shape": [32, 4, 96]}] and softmax["patterns"] == ["fused_0"]
    assert next(c for c in shown["calls"] if c["call"] == "linear")["why"] == "no skeleton"
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(calls_table(found), parts_table(found))
    text = console.export_text()
    assert "scale -> mask -> softmax" in text and "f32 [32, 4, 96]" in text and "no skeleton" in text


def test_the_graph_is_drawn_in_its_patterns_colours(found: Discovery) -> None:
    tree = ET.fromstring(discovery_svg(found))
    space = {"s": "http://www.w3.org/2000/svg"}
    boxes = {
        g.findtext("s:title", "", space).split(":")[0]: g.find("s:rect", space) for g in tree.iter(f"{{{space['s']}}}g")
    }
    fills = {name: box.get("fill") for name, box in boxes.items() if name and box is not None}
    assert fills["softmax"] == fills["mul"] == fills["masked_fill"] != "none" and fills["linear"] == "none"
    assert "fused_0: scale -> mask -> softmax" in "".join(tree.itertext())


def test_a_module_that_cannot_be_traced_is_the_users_to_mend() -> None:
    with pytest.raises(UserError, match=r"small\.py: small can't be traced"):
        discovery(MODULE.replace("return torch", "return x if x.sum() > 0 else torch"))


class Untraceable(InProcessCell):
    """A cell whose GPU is not there; it says what it was asked, and whether the device was held."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.held_for = False, dict[str, bool]()

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        self.held = True
        yield
        self.held = False

    def ask(self, request: Any, kind: type[T], **rest: Any) -> T:
        self.held_for[type(request).__name__] = self.held
        if isinstance(request, wire.Trace):
            assert kind is wire.Traced
            return kind(graph="", failure="no such luck")
        return super().ask(request, kind, **rest)


@pytest.mark.parametrize("large", [False, True])
def test_a_gpu_is_let_go_while_a_module_is_traced(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not where tensors like its inputs leave others less than they count on."""
    monkeypatch.setattr(memories, "is_large", lambda described: large)
    problem = Problem(name="small", path="/nowhere/small.py", source=MODULE, target="cuda")
    cell = Untraceable()
    cell.do(wire.LoadProblem(path=problem.path, source=MODULE, cases=problem.cases, compiled=False))
    with pytest.raises(UserError, match="small can't be traced: no such luck"):
        discovered(problem, machine=MACHINE, reference=cell, seed=1, turn=cell.turn)
    assert cell.held_for["Describe"] and cell.held_for["Trace"] == large
