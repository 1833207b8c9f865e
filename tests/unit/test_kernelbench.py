"""benchmarks/kernelbench.py: a group's command, source trees before and after, and tasks in other precisions."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tilewright.judge.reference_process.problem import load_problem

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
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
# Stands for `python -m tilewright bench`: one task, whose time the tree of sources says.
BENCH = """
import json, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--json") + 1])
ns = float((Path(__file__).parent / "ns").read_text())
task = {"problem": "1_a", "status": "improved", "verdict": {"accepted": True, "stage": "timing"}, "stations": [1],
        "times_ns": {"ours": {"mid": ns}, "eager": {"mid": 8e3}},
        "ratio": {"eager": {"low": 1, "mid": 8e3 / ns, "high": 9}}}
out.write_text(json.dumps({"tasks": [task], "command": "bench", "commit": "c", "machine": {"device": "H200"}}))
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("kernelbench")


def test_groups_are_the_tasks_of_each_kind(script: ModuleType) -> None:
    counts = [len(script.numbers(only)) for _, only in script.GROUPS.values()]
    assert counts == [48, 16, 37, 35, 63]
    command = script.command(Path("kb"), "memory-bound", Path("out"))
    assert (
        command[1:5] == ["-m", "tilewright", "bench", "kernelbench:kb/level1"]
        and command[-1] == "out/memory-bound.runs"
    )


def test_two_trees_are_measured_by_one_command_and_compared(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, ns in (("old", "4e3"), ("new", "2e3")):
        package = tmp_path / name / "tilewright"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(BENCH)
        (package / "ns").write_text(ns)
    trees = [argument for name in ("old", "new") for argument in ("--src", str(tmp_path / name))]
    monkeypatch.setattr(
        sys, "argv", ["kernelbench.py", "kb", "--out", str(tmp_path / "out"), "--only", "level1", *trees]
    )
    assert script.main() == 0
    said = capsys.readouterr().out
    assert "level1, 0: 2.000 of eager, 1 of 1 right" in said and "level1, 1: 4.000 of eager" in said
    assert "1_a: 4.0 us -> 2.0 us, 2.000" in said and "geometric mean 2.000" in said
    (kept,) = json.loads((tmp_path / "out" / "1" / "level1.json").read_text())["tasks"]
    assert "stations" not in kept and kept["times_ns"]["ours"] == {"mid": 2000}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_module_and_inputs_are_of_the_precision(script: ModuleType, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "7_Layer.py").write_text(SOURCE)
    name, text = script.in_precision(tmp_path / "7_Layer.py", dtype)
    assert name == f"{7 + script._MORE[dtype]}_{dtype}_Layer.py"
    found = load_problem(name, text)
    module, inputs = found.model(*found.get_init_inputs()), found.get_inputs()
    assert [x.dtype for x in inputs] == [getattr(torch, dtype), torch.int64]
    assert module(*inputs).dtype == getattr(torch, dtype) and isinstance(module, found.model)
    assert script.in_precision(tmp_path / "7_Layer.py", "float32") == ("7_float32_Layer.py", SOURCE)


def test_a_group_is_laid_out_in_another_precision_under_its_own_numbers(script: ModuleType, tmp_path: Path) -> None:
    level = tmp_path / "kb" / "level1"
    level.mkdir(parents=True)
    for number in (1, 5):  # 5 is no product
        (level / f"{number}_Layer.py").write_text(SOURCE)
    made = script.in_dtype(tmp_path / "kb", "level1", tmp_path / "out", "bfloat16")
    (file,) = (made / "level1").iterdir()
    assert file.name == "1_Layer.py" and "self.to(torch.bfloat16)" in file.read_text()
