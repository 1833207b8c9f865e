"""Cases that differ in open sizes alone are one: its kernels take every size of the ranges, and no call falls back."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.realisers import DEVICES_OF
from tilewright.edges.problems import read_problem
from tilewright.facts.pattern import Choice
from tilewright.facts.problem import OpenSize, Problem, Target, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace
from tilewright.judge.build import load_candidate
from tilewright.realise.compose import compose
from tilewright.run.export import export
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

"""
PERCEPTRON = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)
        self.eval()

    def forward(self, x):
        return self.norm(x + self.narrow(F.gelu(self.wide(x))))

CASES = [{"rows": 96}]
DYNAMIC = {"rows": (1, 512)}
def get_inputs(rows): return [torch.randn(rows, 64)]
def get_init_inputs(rows): return []
"""
)
BLOCK = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.eval()

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = (t.view(batch, seq, 4, 16).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.mT / 4.0, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, seq, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))

CASES = [{"batch": 4, "seq": 48}]
DYNAMIC = {"batch": (1, 16), "seq": (2, 128)}
def get_inputs(batch, seq): return [torch.randn(batch, seq, 64)]
def get_init_inputs(batch, seq): return []
"""
)
CONVOLUTIONS = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)
        self.eval()

    def forward(self, x):
        x = F.relu(self.norm(self.one(x)))
        x = F.silu(self.two(x)) + x
        return torch.softmax(self.head(x.mean((2, 3))), -1)

CASES = [{"batch": 8}]
DYNAMIC = {"batch": (1, 32)}
def get_inputs(batch): return [torch.randn(batch, 3, 20, 20)]
def get_init_inputs(batch): return []
"""
)


def problem_of(source: str, folder: Path, target: Target = "cpu") -> Problem:
    path = folder / "problem.py"
    path.write_text(source)
    return read_problem(path, target=target)


def cases_of(problem: Problem, names: dict[str, Any]) -> tuple[CaseFacts, ...]:
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    found = []
    for text in problem.cases:
        numbers = json.loads(text)
        graph = trace(names["Model"](), tuple(names["get_inputs"](**numbers)), {})
        sizes = tuple(
            OpenSize(name=s.name, size=numbers[s.name], low=s.low, high=s.high) for s in problem.open
        )  # fmt: skip
        found.append(CaseFacts(inputs=(), outputs=(), work=work, graph=graph, open=sizes, fixed="{}"))
    return tuple(found)


def composed(source: str, folder: Path, *, target: Target = "cpu") -> tuple[ModuleType, list[str]]:
    """The module of all kernels that fit, and their titles."""
    problem = problem_of(source, folder, target)
    names: dict[str, Any] = {}
    exec(source, names)
    cases = cases_of(problem, names)
    matched = found_patterns(cases, DEVICES_OF[target])
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    candidate = compose(source, cases, matched, recipe, device=DEVICES_OF[target])
    write_candidate(candidate, folder / "c")
    sys.path.insert(0, str(folder / "c"))
    spec = importlib.util.spec_from_file_location("model_open", folder / "c" / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, [p.title for p in matched[0].patterns]


@pytest.fixture
def alone() -> Iterator[None]:
    """Nothing of a candidate is left for other tests."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith(("fused_", "tilewright_kernels", "model_", "original_")):
            del sys.modules[name]


def check(model: ModuleType, ours: Any, *inputs: Tensor) -> None:
    exact = model.Model().double()
    exact.load_state_dict(ours.state_dict())
    truth = exact(*(t.double() for t in inputs))
    torch.testing.assert_close(ours(*inputs).double(), truth, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:tilewright")
@pytest.mark.parametrize(
    ("source", "sizes", "outside", "least"),
    [
        pytest.param(PERCEPTRON, [(96,), (1,), (2,), (97,), (512,)], (513,), 2, marks=pytest.mark.thorough),
        (BLOCK, [(4, 48), (1, 2), (3, 48), (4, 127), (16, 128), (1, 128)], (4, 129), 3),
        pytest.param(CONVOLUTIONS, [(8,), (1,), (5,), (32,)], (33,), 2, marks=pytest.mark.thorough),
    ],
    ids=["perceptron", "block", "convolutions"],
)
def test_one_case_takes_every_size_of_its_ranges(
    source: str, sizes: list[tuple[int, ...]], outside: tuple[int, ...], least: int, tmp_path: Path, alone: None
) -> None:
    model, titles = composed(source, tmp_path)
    assert len(titles) >= least and len(model._JUDGED) == 1 and " to " in model._JUDGED[0]
    ours = model.ModelNew()
    for now in sizes:
        check(model, ours, *model._original().get_inputs(*now))
    assert model.FALLBACKS == {}
    check(model, ours, *model._original().get_inputs(*outside))
    assert model.FALLBACKS == {"no case has this signature": 1}
    assert len(list((tmp_path / "c" / "build").glob("*.so"))) == len(titles), "a library for each kernel, not each size"


@pytest.mark.slow
@torch.no_grad()
def test_under_torch_compile_one_graph_takes_every_size(tmp_path: Path, alone: None) -> None:
    model, _ = composed(BLOCK, tmp_path)
    ours = model.ModelNew()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend=backend)
    for now in [(4, 48), (3, 50), (16, 128)]:
        (x,) = model._original().get_inputs(*now)
        torch.testing.assert_close(compiled(x), ours(x), rtol=1e-5, atol=1e-5)
    assert len(graphs) == 1 and model.FALLBACKS == {}
    targets = {str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"}
    assert any("fused_0" in target for target in targets)


def test_what_depends_on_a_size_in_another_way_stays_apart(tmp_path: Path) -> None:
    """A constant that is made of the size, here the share of each, is no whole number that follows it."""
    source = PERCEPTRON.replace("return self.norm(x", "return self.norm(x / (1.0 + 1.0 / x.shape[0])")
    problem = problem_of(source, tmp_path)
    names: dict[str, Any] = {}
    exec(source, names)
    cases = cases_of(problem, names)
    matched = found_patterns(cases, DEVICES_OF["cpu"])
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    assert recipe and any("sizes change from call to call" in line for line in matched[0].unmatched)
    text = next(
        f.text for f in compose(source, cases, matched, recipe, device=DEVICES_OF["cpu"]).files if f.path == "model.py"
    )
    assert text.count("def _case_") == len(problem.cases)


@pytest.mark.slow
def test_on_a_gpu_open_dimensions_are_rows(tmp_path: Path, alone: None) -> None:
    problem = problem_of(BLOCK, tmp_path, "cuda")
    names: dict[str, Any] = {}
    exec(BLOCK, names)
    matched = found_patterns(cases_of(problem, names), DEVICES_OF["cuda"])
    norms = [p for p in matched[0].patterns if "layer_norm" in p.title]
    assert norms and all(p.program.open == (0,) and p.program.domain == (4 * 48, 64) for p in norms)
    composed(BLOCK, tmp_path, target="cuda")
    lines = (tmp_path / "c" / "model.py").read_text()
    assert f"{norms[0].id}.takes(batch * seq)" in lines and "x.reshape((batch * seq, 64))" in lines


EXPORTED = """
import sys, torch, anysize
from anysize import original
reference = original.Model().eval()
ours = anysize.load(reference)
with torch.no_grad():
    for now in [(4, 48), (1, 2), (16, 128)]:
        (x,) = original.get_inputs(*now)
        torch.testing.assert_close(ours(x), reference(x), rtol=1e-4, atol=1e-5)
    batch, seq = torch.export.Dim("batch", min=2, max=16), torch.export.Dim("seq", min=2, max=128)
    program = torch.export.export(ours, original.get_inputs(4, 48), dynamic_shapes=({0: batch, 1: seq},))
    (x,) = original.get_inputs(3, 77)
    torch.testing.assert_close(program.module()(x), reference(x), rtol=1e-4, atol=1e-5)
assert anysize.fallbacks() == {}, anysize.fallbacks()
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_package_of_it_takes_every_size_and_so_does_what_torch_exports_of_it(tmp_path: Path, alone: None) -> None:
    composed(BLOCK, tmp_path)
    made = export(load_candidate(tmp_path / "c"), tmp_path / "out", name="anysize")
    command = [sys.executable, "-c", EXPORTED]
    environment = os.environ | {"PYTHONPATH": str(made.package.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
