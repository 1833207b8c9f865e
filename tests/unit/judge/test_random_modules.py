"""A module with dropout through a whole Judge: any honest generator passes, what is no dropout does not."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from fakes.judges import context_judge
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Failure, Timed
from tilewright.judge.evaluate import Judge
from tilewright.judge.timing import measure

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(x * 2), x.sum(1)

def get_inputs():
    return [torch.rand(64, 300)]

def get_init_inputs():
    return []
"""
NEW = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.source = torch.Generator()
        self.source.seed()

    def forward(self, x):
        mask = MASK
        return x * 2 * mask / 0.8, x.sum(1)
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    judge = context_judge(SOURCE, tmp_path_factory.mktemp("random"))
    with judge as opened, patch.object(measure, "check_clock"):
        opened.open()
        yield opened


def _judged(judge: Judge, mask: str) -> Timed | Failure:
    return judge.evaluate(Candidate(files=(SourceFile(path="model.py", text=NEW.replace("MASK", mask)),)))


@pytest.mark.thorough
@pytest.mark.measured
def test_a_generator_of_its_own_passes(judge: Judge) -> None:
    outcome = _judged(judge, "torch.rand(x.shape, generator=self.source) >= 0.2")
    assert isinstance(outcome, Timed), outcome
    assert any("compared as distributions" in n for n in outcome.checked.notes)
    assert {e.allowed_norm for e in outcome.checked.errors if e.output == 0} == {8.0, 16.0}, "timed calls too"


@pytest.mark.parametrize(
    "mask", ["0.8", "(torch.rand(x.shape) >= 0.25)", "(torch.rand(1, x.shape[1]) >= 0.2).expand_as(x)"]
)
def test_what_is_no_dropout_is_refused(judge: Judge, mask: str) -> None:
    outcome = _judged(judge, mask)
    assert isinstance(outcome, Failure) and outcome.reason == "wrong_distribution", outcome


def test_what_is_not_random_is_held_to_its_value(judge: Judge) -> None:
    outcome = _judged(judge, "torch.rand(x.shape) >= 0.2; x = x * 1.001")
    assert isinstance(outcome, Failure), outcome
