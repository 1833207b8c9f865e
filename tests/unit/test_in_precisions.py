"""benchmarks/in_precisions.py: a module and its inputs in another precision, and the same file in its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tilewright.judge.reference_process.problem import load_problem

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "in_precisions.py"
SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super(Model, self).__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, rows):
        return self.linear(x)[rows]


def get_inputs():
    return [torch.randn(3, 4), torch.tensor([0, 2])]


def get_init_inputs():
    return [4]
"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("in_precisions", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_module_and_inputs_are_of_the_precision(script: ModuleType, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "7_Layer.py").write_text(SOURCE)
    name, text = script.written(tmp_path / "7_Layer.py", dtype)
    assert name == f"{7 + script._MORE[dtype]}_{dtype}_Layer.py"
    found = load_problem(name, text)
    module, inputs = found.model(*found.get_init_inputs()), found.get_inputs()
    assert [x.dtype for x in inputs] == [getattr(torch, dtype), torch.int64]
    assert module(*inputs).dtype == getattr(torch, dtype) and isinstance(module, found.model)


def test_in_fp32_it_is_the_file_itself(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "7_Layer.py").write_text(SOURCE)
    assert script.written(tmp_path / "7_Layer.py", "float32") == ("7_float32_Layer.py", SOURCE)
