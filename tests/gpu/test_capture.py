"""Candidates as CUDA graphs: recorded, filled anew and replayed beside the module; and what is refused there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Captured, Failure
from tilewright.facts.problem import Problem
from tilewright.judge.evaluate import Judge, JudgeOptions

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
    def forward(self, x):
        BODY

def get_inputs():
    return [torch.randn(2048, 1024)]

def get_init_inputs():
    return [1024]
"""
BODY = "return torch.nn.functional.gelu(self.norm(x)) * 2.0"
ASKS = "return torch.nn.functional.gelu(self.norm(x)) * (2.0 if x.sum().item() < 1e30 else 3.0)"
STALE = """if not hasattr(self, "kept"):
            self.kept = x.clone()
        return torch.nn.functional.gelu(self.norm(self.kept)) * 2.0"""


@pytest.fixture
def judge(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Judge]:
    source = PROBLEM.replace("BODY", request.param)
    problem = Problem(name="small", path="/nowhere/small.py", source=source, target="cuda")
    machine = measured_machine("cuda", cache_dir=tmp_path / "cache")
    with Judge(
        problem,
        machine=machine,
        seed=1,
        workdir=tmp_path / "work",
        say=print,
        options=JudgeOptions(compile_baseline=False),
    ) as judge:
        judge.open()
        yield judge


def written(body: str) -> Candidate:
    text = PROBLEM.replace("class Model", "class ModelNew").replace("BODY", body).partition("def get_inputs")[0]
    return Candidate(files=(SourceFile(path="model.py", text=text),))


@pytest.mark.parametrize("judge", [BODY], indirect=True)
def test_the_module_itself_takes_as_long_as_itself(judge: Judge) -> None:
    found = judge.capture(written(BODY))
    assert isinstance(found, Captured) and found.ratio is not None, found
    assert found.ratio.low < 1.1 and found.ratio.high > 0.9, found
    assert not found.pays
    assert isinstance(judge.capture(written(BODY)), Captured), "the judge goes on in fresh cells"


@pytest.mark.parametrize("judge", [BODY], indirect=True)
def test_what_a_graph_would_get_wrong_is_refused(judge: Judge) -> None:
    stale = judge.capture(written(STALE))
    assert isinstance(stale, Failure) and stale.reason == "wrong_values" and "replayed" in stale.summary, stale
    asks = judge.capture(written(ASKS))
    assert isinstance(asks, Failure) and asks.reason == "not_capturable", asks


@pytest.mark.parametrize("judge", [ASKS], indirect=True)
def test_a_module_that_asks_the_device_has_no_graph_to_lose(judge: Judge) -> None:
    found = judge.capture(written(BODY))
    assert isinstance(found, Captured) and found.ratio is None and found.why and found.pays, found
