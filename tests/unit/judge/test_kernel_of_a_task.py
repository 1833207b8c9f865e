"""A robust-kbench task folder and a kernel for it, in C++ here: compiled in the cell, judged with its backward."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from fakes.judges import context_judge
from tilewright.edges.problems import read_problem
from tilewright.facts.outcome import Timed
from tilewright.judge.build import load_candidate
from tilewright.judge.client import CellLimits

PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(shutil.which(tool, path=PATH) for tool in ("ninja", "g++")), reason="no ninja or no g++"
    ),
]

MODULE = """
import torch

class AutogradFunction(torch.autograd.Function):
    backward_fn = None

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, upstream):
        return tuple(AutogradFunction.backward_fn(upstream, *ctx.saved_tensors))

def forward_fn(x, scale):
    return x * scale

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.scale)

def get_inputs(rows, width):
    return [torch.rand(rows, width, requires_grad=True)]
"""
CONFIG = {
    "single_init_configs": [{}], "single_input_configs": [{"rows": 300}], "single_shared_configs": [{"width": 64}],
    "multi_init_configs": [{}], "multi_input_configs": [{"rows": 2}], "multi_shared_configs": [{"width": 5}],
}  # fmt: skip
KERNEL = """
#include <pybind11/pybind11.h>  // tensors as Python has them: ATen's headers take as long again to compile
namespace py = pybind11;
py::tuple backward(py::object upstream, py::object x, py::object scale) {
  return py::make_tuple(upstream * scale, (upstream * x).attr("sum")(0));
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("backward", &backward); }
"""


@pytest.mark.thorough
@pytest.mark.measured
def test_a_kernel_is_judged_with_its_backward_on_every_setting(tmp_path: Path) -> None:
    task = tmp_path / "scale"
    task.mkdir()
    (task / "func_backward.py").write_text(MODULE)
    (task / "config_backward.json").write_text(json.dumps(CONFIG))
    (tmp_path / "kernel.cpp").write_text(KERNEL)
    problem = read_problem(task, target="cpu")
    limits = CellLimits(build_s=500.0, call_s=120.0, memory_bytes=4 << 30)
    with context_judge(problem, tmp_path, limits=limits) as judge:
        facts = judge.open()
        assert [f.inputs[0].shape for f in facts] == [(300, 64), (2, 5)]
        outcome = judge.evaluate(load_candidate(tmp_path / "kernel.cpp", problem))
    assert isinstance(outcome, Timed), outcome
    assert {(e.case, e.output) for e in outcome.checked.errors} == {(c, o) for c in (0, 1) for o in (0, 1, 2)}
