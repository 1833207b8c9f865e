"""Booleans that a comparison gave: rounding may turn them round where two values are equal but for it, nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.judges import context_judge
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Failure, Timed
from tilewright.judge.evaluate import Judge

pytestmark = [pytest.mark.slow, pytest.mark.each(3)]

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 1024))

    def forward(self, x):
        h = x @ self.weight + 1e3 - 1e3
        return h > 0, h.relu() <= 0, x > 0.5

def get_inputs():
    return [torch.randn(768, 32)]

def get_init_inputs():
    return []
"""
PRODUCT = "h = x @ self.weight + 1e3 - 1e3"
# Whole numbers stay as they are, all else moves by up to 1e-4, twice what the module's own sum loses: of a million
# some five turn round.
ROUNDED = "h = x @ self.weight + 3e3 - 3e3"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with context_judge(SOURCE, tmp_path_factory.mktemp("compared")) as opened:
        opened.open()
        yield opened


def _judged(judge: Judge, old: str, new: str) -> Timed | Failure:
    text = SOURCE.replace("class Model(", "class ModelNew(")
    assert old in text
    return judge.evaluate(Candidate(files=(SourceFile(path="model.py", text=text.replace(old, new)),)))


@pytest.mark.thorough
@pytest.mark.measured
def test_another_rounding(judge: Judge) -> None:
    outcome = _judged(judge, PRODUCT, ROUNDED)
    assert isinstance(outcome, Timed), outcome
    turned = {e.output for e in outcome.checked.errors if 0 < e.worst <= e.allowed_worst}
    assert turned == {0, 1}, "nothing was next to nought"


@pytest.mark.few(0)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (PRODUCT, "h = (x.view(torch.int32) & ~0x1FFF).view(torch.float32) @ self.weight + 1e3 - 1e3", "output 0"),
        (PRODUCT, "h = x @ self.weight + 1e3 - 1e3 + 1e-30", "output 0"),
        ("h.relu() <= 0", "h < 0", "output 1"),
        ("x > 0.5", "x.half() > 0.5", "output 2"),
    ],
    ids=["one operand in tf32", "nought is above", "nought is not below", "by fp16"],
)
def test_what_is_off_elsewhere(judge: Judge, old: str, new: str, words: str) -> None:
    outcome = _judged(judge, old, new)
    assert isinstance(outcome, Failure), "it passed"
    assert outcome.reason == "wrong_values" and words in outcome.summary, outcome
