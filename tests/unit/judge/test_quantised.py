"""Results of eight bits: another way to the same numbers may go the other way at a tie, and nowhere else."""

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
    def forward(self, x):
        y = x / x.pow(2).mean(-1, keepdim=True).sqrt()
        scale = y.abs().amax(-1, keepdim=True) / 127
        whole = torch.round(y / scale).clamp(-127, 127).to(torch.int8)
        eighth = (y / scale).to(torch.float8_e4m3fn)
        return whole, eighth, scale

def get_inputs():
    return [torch.randn(256, 2048)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with context_judge(SOURCE, tmp_path_factory.mktemp("quantised")) as opened:
        opened.open()
        yield opened


def _judged(judge: Judge, old: str, new: str) -> Timed | Failure:
    text = SOURCE.replace("class Model(", "class ModelNew(")
    assert old in text
    return judge.evaluate(Candidate(files=(SourceFile(path="model.py", text=text.replace(old, new)),)))


WAY = "y / scale"
HONEST = "y * (1 / scale) * (1 + 1e-7)"  # some 1e-7 off: hundreds of elements of a million go the other way


@pytest.mark.thorough
@pytest.mark.measured
def test_another_way_to_the_same_numbers(judge: Judge) -> None:
    outcome = _judged(judge, WAY, HONEST)
    assert isinstance(outcome, Timed), outcome
    assert any(0 < e.worst <= e.allowed_worst for e in outcome.checked.errors if e.output == 0), "nothing was at a tie"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("torch.round(y / scale)", "(y / scale)", "output 0"),
        ("torch.round(y / scale)", "torch.floor(y / scale + 0.501)", "output 0"),
        ("torch.round(y / scale)", "torch.round((y / scale).bfloat16())", "output 0"),
        ("(y / scale).to(torch.float8_e4m3fn)", "(y / scale * 1.01).to(torch.float8_e4m3fn)", "output 1"),
        ("(y / scale).to(torch.float8_e4m3fn)", "(y / scale).bfloat16().to(torch.float8_e4m3fn)", "output 1"),
    ],
    ids=["towards zero", "a shifted tie", "by bf16", "scaled", "e4m3 by bf16"],
)
def test_what_is_off_elsewhere(judge: Judge, old: str, new: str, words: str) -> None:
    outcome = _judged(judge, old, new)
    assert isinstance(outcome, Failure), "it passed"
    assert outcome.reason == "wrong_values" and words in outcome.summary, outcome
