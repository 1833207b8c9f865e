"""`dynamic_shapes`: said as torch.export has it, or by examples, it becomes the open sizes of a problem file."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tilewright.edges.problems import read_problem
from tilewright.faces.capture import write_examples
from tilewright.faces.examples import examples_of
from tilewright.faces.open_shapes import open_shapes
from tilewright.faces.trees import trees_of
from tilewright.facts.errors import UserError
from tilewright.facts.problem import Problem


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, gate: list[Tensor], scale: float = 2.0) -> Tensor:
        return self.linear(x) * gate[0] * scale


BATCH, SEQ = Dim("batch", min=1, max=64), Dim("seq", min=2, max=512)


def captured(folder: Path, examples: Any, dynamic: Any) -> tuple[Problem, dict[str, Any]]:
    module, found = Gated().eval(), examples_of(examples)
    shapes = open_shapes(module, found, dynamic)
    path = write_examples(module, found, trees_of(module, found), folder, shapes)
    return read_problem(path, target="cpu"), runpy.run_path(str(path))


def given(batch: int = 8, seq: int = 16) -> dict[str, Any]:
    return {"x": torch.randn(batch, seq, 6), "gate": [torch.randn(batch, seq, 1)]}


@pytest.mark.parametrize("by_name", [True, False])
def test_dims_with_names_are_the_sizes_of_the_problem(by_name: bool, tmp_path: Path) -> None:
    spec = {"x": {0: BATCH, 1: SEQ}, "gate": [(BATCH, SEQ, None)]}
    example = given() if by_name else tuple(given().values())
    problem, names = captured(tmp_path, example, spec if by_name else tuple(spec.values()))
    assert [(s.name, s.size, s.low, s.high) for s in problem.open] == [("batch", 8, 1, 64), ("seq", 16, 2, 512)]
    assert len(problem.cases) == 5 and json.loads(problem.cases[0]) == {"batch": 8, "seq": 16}
    made = names["get_inputs"](batch=3, seq=5)
    x, gate = (made["x"], made["gate"]) if by_name else made
    assert x.shape == (3, 5, 6) and gate[0].shape == (3, 5, 1) and x.is_contiguous()
    assert names["Model"](*names["get_init_inputs"](batch=3, seq=5))(x, gate).shape == (3, 5, 6)


def test_examples_that_differ_in_sizes_say_the_same(tmp_path: Path) -> None:
    problem, _ = captured(tmp_path, [given(), given(2, 16), given(4, 40)], True)
    assert [(s.size, s.low, s.high) for s in problem.open] == [(8, 2, 8), (16, 16, 40)]
    assert {tuple(json.loads(case).values()) for case in problem.cases} >= {(8, 16), (2, 16), (4, 40)}


@pytest.mark.parametrize(
    ("examples", "dynamic", "said"),
    [
        (given(), {"x": {0: Dim.AUTO}}, "give torch.export.Dim"),
        (given(), {"y": {0: BATCH}}, "no argument 'y'"),
        (given(), {"x": {3: BATCH}}, "has 3 dimensions"),
        (given(), {"x": {0: BATCH, 1: BATCH}}, "'batch' is 8 and 16"),
        (given(), {"x": {0: Dim("batch", min=9, max=64)}}, "from 9 to 64"),
        (given(), {"x": None}, "names no dimension"),
        (given(1), {"x": {0: BATCH}}, "above 1"),
        ([given(), given(2)], {"x": {0: BATCH}}, "give one, or True"),
        ([given(), given()], True, "the same sizes"),
        ([given(), given(2) | {"scale": 3.0}], True, "more than sizes"),
    ],
)
def test_anything_else_is_refused_in_one_line(examples: Any, dynamic: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        captured(tmp_path, examples, dynamic)
