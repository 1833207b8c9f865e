"""A problem with open sizes through a Judge on the CPU: its cases know them, and hidden ones lie in the ranges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from fakes.judges import context_judge
from tilewright.edges.problems import read_problem
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Failure
from tilewright.judge.evaluate import Judge
from tilewright.judge.timing import measure

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)DECIDED

CASES = [{"batch": 32, "seq": 40}]
DYNAMIC = {"batch": (1, 64), "seq": (2, 100)}
def get_inputs(batch, seq):
    return [torch.randn(batch, seq)]

def get_init_inputs(batch, seq):
    return []
"""
# Right at all sizes that the problem's cases have.
NARROW = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1) if 20 <= x.shape[0] <= 32 else torch.softmax(x, -1) * 1.01
"""


def judge_of(folder: Path, decided: str = "") -> Judge:
    path = folder / "problem.py"
    path.write_text(SOURCE.replace("DECIDED", decided))
    return context_judge(read_problem(path, target="cpu"), folder, trace=True)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    judge = judge_of(tmp_path_factory.mktemp("open"))
    with judge as opened, patch.object(measure, "check_clock"):  # the clock has tests of its own
        opened.open()
        yield opened


def test_cases_know_their_sizes_and_hidden_ones_lie_in_the_ranges(judge: Judge) -> None:
    cases = judge.opened.cases
    assert [tuple(s.size for s in case.facts.open) for case in cases[:3]] == [(32, 40), (28, 40), (32, 35)]
    assert {case.facts.fixed for case in cases} == {"{}"}
    shapes = [case.described.inputs[0].shape for case in judge.opened.hidden_cases()]
    assert shapes[0] == (1, 2) and shapes[2] == (64, 100)
    assert 1 <= shapes[1][0] <= 64 and 2 <= shapes[1][1] <= 100


@pytest.mark.measured
def test_what_is_right_at_the_cases_alone_is_refused(judge: Judge) -> None:
    outcome = judge.evaluate(Candidate(files=(SourceFile(path="model.py", text=NARROW),)))
    assert isinstance(outcome, Failure) and outcome.reason == "wrong_values" and "hidden case" in outcome.summary


@pytest.mark.thorough
def test_a_size_that_decides_something_stays(tmp_path: Path) -> None:
    said: list[str] = []
    with judge_of(tmp_path, " * (2.0 if x.shape[1] > 30 else 3.0)") as opened:
        opened.opened.say = said.append
        opened.open()
        assert [s.name for s in opened.opened.cases[0].facts.open] == ["batch"]
    assert any("seq" in line and "torch.export" in line for line in said)
