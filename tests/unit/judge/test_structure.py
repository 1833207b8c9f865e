"""What a result must have in common with the reference's before a value of it is read, and what it need not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.judges import context_judge
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Failure, Timed
from tilewright.judge.evaluate import Judge

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        values, places = x.max(-1)
        return {
            "top": x.max(-1),
            "none": [None, values],
            "complex": torch.complex(x, x.flip(0)),
            "sum": x.double().sum(),
            "eighth": x.to(torch.float8_e4m3fn),
            "picture": x.view(4, 4, 5, 8) + 1,
        }

def get_inputs():
    return [torch.randn(16, 40)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with context_judge(SOURCE, tmp_path_factory.mktemp("structure")) as opened:
        (facts,) = opened.open()
        assert [o.dtype for o in facts.outputs] == ["c64", "float8_e4m3fn", "f32", "f32", "f64", "f32", "i64"]
        yield opened


def _judged(judge: Judge, old: str, new: str) -> Timed | Failure:
    text = SOURCE.replace("class Model(", "class ModelNew(")
    assert old in text
    return judge.evaluate(Candidate(files=(SourceFile(path="model.py", text=text.replace(old, new)),)))


@pytest.mark.measured
def test_what_may_differ(judge: Judge) -> None:
    """A plain tuple for a named one, another order of keys, a Parameter, a result that wants a gradient, another memory
    format: one candidate has them all."""
    new = """
        result = {
            "picture": (x.view(4, 4, 5, 8) + 1).contiguous(memory_format=torch.channels_last),
            "eighth": nn.Parameter(x.to(torch.float8_e4m3fn), requires_grad=False),
            "sum": nn.Parameter(x.double().sum()),
            "complex": torch.complex(x, x.flip(0)),
            "none": [None, values],
            "top": (values, places),
        }
        with torch.enable_grad():
            result["none"] = [None, values.clone().requires_grad_() * 1.0]
        return result
        {"""
    outcome = _judged(judge, "        return {", new)
    assert isinstance(outcome, Timed), outcome
    found = [n for n in outcome.checked.notes if "strides" in n]
    assert found == ["case 0, output 3 has strides (160, 1, 32, 4), where the reference's has (160, 40, 8, 1)"]


@pytest.mark.parametrize(
    ("old", "new", "reason", "words"),
    [
        ('"none": [None, values]', '"none": [values]', "wrong_structure", "it returns 7 tensors as"),
        ('"none": [None, values]', '"none": (None, values)', "wrong_structure", "it returns 7 tensors as"),
        ("x.double().sum()", "x.double().sum(dim=(0, 1), keepdim=True)[0]", "wrong_shape", "(1,), not ()"),
        ("torch.complex(x, x.flip(0))", "torch.complex(x, x.flip(0) * 1.001)", "wrong_values", "output 0"),
        ("x.to(torch.float8_e4m3fn)", "(x * 1.5).to(torch.float8_e4m3fn)", "wrong_values", "output 1"),
        ("x.to(torch.float8_e4m3fn)", "x.to(torch.float8_e5m2)", "wrong_dtype", "is float8_e5m2"),
        ("x.view(4, 4, 5, 8) + 1", "(x.view(4, 4, 5, 8) + 1)[:1].expand(4, 4, 5, 8)", "wrong_strides", "is expanded"),
    ],
)
def test_what_must_be_equal(judge: Judge, old: str, new: str, reason: str, words: str) -> None:
    outcome = _judged(judge, old, new)
    assert isinstance(outcome, Failure), "it passed"
    assert outcome.reason == reason and words in outcome.summary, outcome
