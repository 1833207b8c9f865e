"""A piece by itself computes what it does in its module, on values like those there; what is written for it fits in."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes.realisers import CPU
from fakes.renderer import InterpretingRenderer
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.discovery import InputStatistics
from tilewright.facts.pattern import Choice, Pattern, Region, Subproblem, Written
from tilewright.facts.problem import Problem, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace
from tilewright.fusion import match_all
from tilewright.ir.graph import Graph
from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process.observe import observed, spread_of
from tilewright.judge.wire import messages as wire
from tilewright.realise.case_code import plain_steps
from tilewright.realise.compose import compose
from tilewright.realise.drawn import drawn
from tilewright.realise.subproblem_code import NotAlone, SubproblemCode, subproblem_code

PROBLEM = Problem(name="block", path="/nowhere/block.py", source="", target="cpu")
MODULE = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)

    def forward(self, x, mask):
        a = self.norm(torch.i0(x).t() * 2)
        b = torch.i0(a)
        scores = torch.where(mask, b * 0.5, float("-inf"))
        return torch.softmax(scores, -1), torch.i0(F.layer_norm(b, (12,), self.norm.weight).relu() * torch.arange(12))
"""


class Seen:
    """The module, what it computes piece by piece, and what its values look like."""

    def __init__(self) -> None:
        scope: dict[str, Any] = {}
        exec(MODULE, scope)
        torch.manual_seed(0)
        self.module: nn.Module = scope["Model"]().eval()
        self.inputs = (torch.randn(12, 40), torch.rand(40, 12) < 0.7)
        self.graph: Graph = trace(self.module, self.inputs, {})
        make = InterpretingRenderer()
        self.matched = match_all([self.graph], unsupported=make.unsupported, space=make.space, tiny_bytes=0)
        self.patterns: tuple[Pattern, ...] = self.matched[0].patterns
        plain = plain_steps(self.graph, target="cpu")
        self.values: dict[str, Tensor] = {}
        names = {"torch": torch, "self": self.module, **dict(zip(plain.parameters, self.inputs, strict=True))}
        nodes = {v.text: v.node for v in plain.values}
        with torch.no_grad():
            self.values |= {node: eval(text, dict(names)) for text, node in nodes.items() if not text.isidentifier()}
            self.values |= dict(zip(("x", "mask"), self.inputs, strict=True))
            for step in plain.steps:
                exec(step.text, names)
                self.values |= {nodes[n]: v for n, v in names.items() if n in nodes and isinstance(v, Tensor)}
        self.spreads = tuple(spread_of(n, v) for n, v in self.values.items())

    def subproblem(self, pattern: Pattern) -> Subproblem:
        return Subproblem(name=pattern.id, title=pattern.title, region=pattern.matches[0].region)

    def code(self, subproblem: Subproblem) -> SubproblemCode:
        return subproblem_code(PROBLEM, self.graph, subproblem, self.spreads)


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


def run(source: str) -> types.ModuleType:
    module = types.ModuleType("piece")
    exec(compile(source, "piece", "exec"), module.__dict__)
    return module


def test_a_piece_computes_what_its_pattern_does_and_draws_inputs_like_those_there(seen: Seen) -> None:
    assert {p.title for p in seen.patterns} == {
        "scale -> layer_norm",
        "scale -> where -> softmax",
        "layer_norm -> relu -> mul",
    }
    for pattern in seen.patterns:
        subproblem = seen.subproblem(pattern)
        problem = run(seen.code(subproblem).problem.source)
        real = [seen.values[name] for name in subproblem.region.inputs]
        got = problem.Model()(*real)
        for mine, name in zip([got] if isinstance(got, Tensor) else got, subproblem.region.outputs, strict=True):
            torch.testing.assert_close(mine, seen.values[name], rtol=1e-6, atol=1e-6)
        for mine, value in zip(problem.get_inputs(), real, strict=True):
            assert (mine.shape, mine.stride(), mine.dtype) == (value.shape, value.stride(), value.dtype)
            low, high = value.double().min() - 1e-5, value.double().max() * (1 + 1e-5) + 1e-5
            assert low <= mine.double().min() and mine.double().max() <= high
            assert abs(mine.double().mean() - value.double().mean()) < 0.25 * max(1.0, value.double().std().item())


def test_torchs_own_operators_stand_in_a_piece_where_they_are_whole(seen: Seen) -> None:
    texts = {p.title: seen.code(seen.subproblem(p)).problem.source for p in seen.patterns}
    assert "torch.ops.aten.softmax" in texts["scale -> where -> softmax"]
    assert "torch.ops.aten.layer_norm" in texts["scale -> layer_norm"] and "exp" not in texts["scale -> layer_norm"]


def test_equal_pieces_have_one_key_whatever_their_values_and_names(seen: Seen) -> None:
    (norm,) = (p for p in seen.patterns if p.title == "scale -> layer_norm")
    subproblem = seen.subproblem(norm)
    louder = tuple(replace(s, high=s.high * 3) for s in seen.spreads)
    other = subproblem_code(replace(PROBLEM, name="other"), seen.graph, subproblem, louder)
    assert other.key == seen.code(subproblem).key and other.problem.source != seen.code(subproblem).problem.source
    strided = tuple(replace(s, stride=tuple(2 * v for v in s.stride)) for s in seen.spreads)
    assert subproblem_code(PROBLEM, seen.graph, subproblem, strided).key != other.key
    assert len({seen.code(seen.subproblem(p)).key for p in seen.patterns}) == len(seen.patterns)


def test_what_takes_values_from_elsewhere_is_no_piece(seen: Seen) -> None:
    (softmax,) = (p for p in seen.patterns if "softmax" in p.title)
    region = softmax.matches[0].region
    with pytest.raises(NotAlone, match="computed elsewhere"):
        seen.code(Subproblem(name="p", title="t", region=replace(region, inputs=())))
    with pytest.raises(NotAlone, match="nothing is known of"):
        subproblem_code(PROBLEM, seen.graph, seen.subproblem(softmax), ())


def test_a_reference_cell_tells_what_all_values_look_like(seen: Seen) -> None:
    subject = CandidateSubject("cpu")
    subject.construct(lambda: seen.module, 0, gradients=wire.NO_GRADIENTS)
    plain = plain_steps(seen.graph, target="cpu")
    text = values.encode(list(seen.inputs), [])
    request = wire.Observe(args=text, inputs=(), parameters=plain.parameters, steps=plain.steps, values=plain.values)
    found = {s.node: s for s in observed(request, subject=subject, inputs=seen.inputs).spreads}
    assert found.keys() == seen.values.keys()
    for name, value in seen.values.items():
        assert found[name] == spread_of(name, value)
    (scores,) = (s for s in found.values() if s.infinite)
    assert scores.infinite == pytest.approx(0.3, abs=0.1) and abs(scores.low) < 10
    assert found["mask"].dtype == "bool" and found["mask"].zeros == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    "spread",
    [
        InputStatistics(
            node="", shape=(900,), stride=(1,), dtype="float32", low=0.5, high=4.0, mean=1.0, deviation=0.5
        ),
        InputStatistics(
            node="", shape=(900,), stride=(1,), dtype="float16", low=-4.0, high=-0.5, mean=-1.0, deviation=0.5
        ),
        InputStatistics(
            node="", shape=(900,), stride=(1,), dtype="float32", low=3.0, high=3.0, mean=3.0, deviation=0.0
        ),
        InputStatistics(
            node="",
            shape=(30, 30),
            stride=(1, 30),
            dtype="bfloat16",
            low=-9.0,
            high=3.0,
            mean=-3,
            deviation=2.0,
            zeros=0.3,
        ),
        InputStatistics(
            node="",
            shape=(900,),
            stride=(2,),
            dtype="float64",
            low=0.0,
            high=0.0,
            mean=0.0,
            deviation=0.0,
            zeros=0.6,
            infinite=0.4,
        ),
        InputStatistics(
            node="", shape=(900,), stride=(1,), dtype="int64", low=1, high=7, mean=4.0, deviation=2.0, zeros=0.1
        ),
        InputStatistics(
            node="", shape=(900,), stride=(1,), dtype="bool", low=1, high=1, mean=1, deviation=0, zeros=0.8
        ),
    ],
)
def test_what_is_drawn_looks_alike(spread: InputStatistics) -> None:
    torch.manual_seed(1)
    made = drawn(spread.shape, spread.stride, spread.dtype, spread.low, spread.high, spread.mean, spread.deviation,
                 (spread.zeros, spread.infinite))  # fmt: skip
    got = spread_of("", made)
    assert (got.shape, got.stride) == (spread.shape, spread.stride) and str(made.dtype) == f"torch.{spread.dtype}"
    assert (got.zeros, got.infinite) == pytest.approx((spread.zeros, spread.infinite), abs=0.06)
    assert spread.low <= got.low and got.high <= spread.high
    assert got.mean == pytest.approx(spread.mean, abs=0.2 * max(abs(spread.mean), 0.1))


BY_HAND = """
import beside
import torch
from original import Model

class ModelNew(torch.nn.Module):
    def forward(self, *operands):
        beside.CALLS.append(len(operands))
        return Model()(*operands)
"""


@pytest.fixture
def candidate_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import importlib
    import sys

    def loaded(candidate: Candidate) -> types.ModuleType:
        for file in candidate.files:
            (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file.path).write_text(file.text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return importlib.import_module("model")

    yield loaded
    for name in [n for n in sys.modules if n.startswith(("fused_", "model", "original"))]:
        del sys.modules[name]


def test_what_was_written_for_pieces_stands_beside_skeletons_in_one_candidate(
    seen: Seen, candidate_folder: Any
) -> None:
    """Two candidates with files of the same names, a pattern that they overlap with, and a third left to a skeleton."""
    patterns = {p.title: p for p in seen.patterns}
    norm, softmax = patterns["scale -> layer_norm"], patterns["scale -> where -> softmax"]

    def written(name: str, subproblem: Subproblem, mark: str) -> Choice:
        files = (
            SourceFile(path="model.py", text=BY_HAND),
            SourceFile(path="beside.py", text=f"MARK = {mark!r}\nCALLS = []\n"),
            SourceFile(path="original.py", text=seen.code(subproblem).problem.source),
        )  # fmt: skip
        there = Written(title=subproblem.title, candidate=Candidate(files=files), regions=(subproblem.region,))
        return Choice(pattern=name, point=(), written=there)

    first = seen.subproblem(norm).region
    i0 = next(n.name for n in seen.graph.nodes if n.op == "call" and first.outputs[0] in _sources(seen.graph, n.name))
    wide = Subproblem(
        name="piece_0", title="layer_norm and i0",
        region=Region(nodes=(*first.nodes, i0), inputs=first.inputs, outputs=(i0,)),
    )  # fmt: skip
    recipe = (
        written("piece_0", wide, "a"), written(softmax.id, seen.subproblem(softmax), "b"),
        *(Choice(pattern=p.id, point=p.space.points[0]) for p in seen.patterns if p not in (norm, softmax)),
    )  # fmt: skip
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    facts = CaseFacts(inputs=(), outputs=(), work=work, graph=seen.graph)
    made = compose(MODULE, (facts,), seen.matched, recipe, device=CPU, make=InterpretingRenderer())
    module = candidate_folder(made)
    new = module.ModelNew().eval()
    new.load_state_dict(seen.module.state_dict())
    with torch.no_grad():
        got = new(*seen.inputs)
        for mine, wanted in zip(got, seen.module(*seen.inputs), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)
    beside = [getattr(module, c.pattern)._module.forward.__globals__["beside"] for c in recipe[:2]]
    taken = [len(wide.region.inputs), len(softmax.matches[0].operands)]
    assert [(b.MARK, b.CALLS) for b in beside] == [("a", taken[:1]), ("b", taken[1:])]
    assert not module.FALLBACKS and "layer_norm and i0" in module.__doc__


def _sources(graph: Graph, name: str) -> tuple[str, ...]:
    node = next(n for n in graph.nodes if n.name == name)
    return next(c.sources for c in graph.calls if c.name == node.origin)
