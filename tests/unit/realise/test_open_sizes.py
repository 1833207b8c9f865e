"""Cases that differ in open sizes alone are one: its kernels take every size of the ranges, and no call falls back."""

from __future__ import annotations

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

from fakes.open_sizes import BLOCK, CONVOLUTIONS, PERCEPTRON, cases_of, composed, problem_of
from fakes.realisers import DEVICES_OF
from tilewright.facts.pattern import Choice
from tilewright.judge.build import load_candidate
from tilewright.realise.compose import compose
from tilewright.realise.open_cases import stay_apart
from tilewright.run.export import export
from tilewright.run.matching import found_patterns


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
        (PERCEPTRON, [(96,), (1,), (2,), (97,), (512,)], (513,), 2),
        pytest.param(
            BLOCK, [(4, 48), (1, 2), (3, 48), (4, 127), (16, 128), (1, 128)], (4, 129), 3, marks=pytest.mark.thorough
        ),
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
    cases = cases_of(problem)
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
    matched = found_patterns(cases_of(problem), DEVICES_OF["cuda"])
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
    program = torch.export.export(ours, tuple(original.get_inputs(4, 48)), dynamic_shapes=(({0: batch, 1: seq},),))
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


def test_cases_that_no_formula_joins_are_told_of(tmp_path: Path) -> None:
    """Halves are no multiple of a size."""
    halves = "half = x.shape[0] // 2\n        x = torch.cat((x[half:], x[:half]))\n        return self.norm(x"
    turned = PERCEPTRON.replace("return self.norm(x", halves)
    assert stay_apart(cases_of(problem_of(turned, tmp_path)), "cpu")
    assert not stay_apart(cases_of(problem_of(PERCEPTRON, tmp_path)), "cpu")
