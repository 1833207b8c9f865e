"""Hidden cases, second looks and special inputs through a whole Judge on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from fakes.judges import context_judge
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Failure, Timed
from tilewright.judge.evaluate import Judge
from tilewright.judge.timing import measure

pytestmark = [pytest.mark.slow, pytest.mark.each(3)]

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x.relu() * 2, x.argmax(1)

def get_inputs():
    return [torch.rand(60, 100)]

def get_init_inputs():
    return []
"""
HONEST = "x.relu() * 2, x.shape[1] - 1 - x.flip(1).argmax(1)"  # the last of several equal ones
NEW = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        BEFORE
        return RESULT
"""


def _candidate(text: str) -> Candidate:
    return Candidate(files=(SourceFile(path="model.py", text=text),))


def _new(result: str = HONEST, before: str = "pass") -> str:
    return NEW.replace("RESULT", result).replace("BEFORE", before)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    judge = context_judge(SOURCE, tmp_path_factory.mktemp("hidden"))
    with judge as opened, patch.object(measure, "check_clock"):  # the clock has tests of its own
        opened.open()
        yield opened


@pytest.mark.measured
def test_another_rule_for_ties_is_right(judge: Judge) -> None:
    outcome = judge.evaluate(_candidate(_new()))
    assert isinstance(outcome, Timed), outcome
    assert not [n for n in outcome.checked.notes if "shapes" in n]
    cases = [c.described.inputs[0] for c in judge.opened.hidden_cases()]
    assert [c.shape for c in cases] == [(59, 97), (121, 201), (1, 100), (60, 100)]
    assert cases[3].stride == (103, 1)


@pytest.mark.measured
@pytest.mark.parametrize(
    ("result", "before", "words"),
    [
        ("torch.cat([x[:60].relu() * 2, 0 * x[60:]]), x.argmax(1)", "pass", "121x201"),
        ("torch.as_strided(x, x.shape, (x.shape[1], 1)).relu() * 2, x.argmax(1)", "pass", "60x100"),
        ("torch.cat([x[:, :100].relu() * 2, x[:, 100:]], 1), x[:, :97].argmax(1)", "pass", "argmax"),
        ("x.relu() * 2, x.argmax(1).clamp(max=98)", "pass", "output 1"),
    ],
)
def test_what_is_wrong_elsewhere_in_silence_is_refused(judge: Judge, result: str, before: str, words: str) -> None:
    outcome = judge.evaluate(_candidate(_new(result, before)))
    assert isinstance(outcome, Failure) and outcome.reason == "wrong_values", outcome
    assert words in outcome.summary or words == "argmax"


@pytest.mark.measured
def test_who_passed_before_is_not_asked_again(judge: Judge) -> None:
    """Wrong elsewhere: whether hidden cases are looked at shows."""
    wrong = "torch.cat([x[:60].relu() * 2, 0 * x[60:]]), x.argmax(1)"
    outcome = judge.evaluate(_candidate(_new(wrong)), vouched=True)
    assert isinstance(outcome, Timed), outcome
    assert [s.name for s in outcome.stations if "hidden" in s.name] == []
    assert any("not repeated" in note for note in outcome.checked.notes)


@pytest.mark.measured
def test_what_raises_elsewhere_is_told_of(judge: Judge) -> None:
    loud = "assert x.shape == (60, 100) and x.is_contiguous(), 'made for 60 x 100'"
    outcome = judge.evaluate(_candidate(_new(before=loud)))
    assert isinstance(outcome, Timed), outcome
    told = [n for n in outcome.checked.notes if "raises at other shapes" in n]
    assert len(told) == 4 and all("made for 60 x 100" in n for n in told)


@pytest.mark.measured
def test_nan_that_gets_lost_is_told_of_and_infinity_is_not_forgiven(judge: Judge) -> None:
    outcome = judge.evaluate(_candidate(_new("x.nan_to_num(0.0, posinf=torch.inf).relu() * 2, x.argmax(1)")))
    assert isinstance(outcome, Timed), outcome
    assert any("NaN" in n for n in outcome.checked.notes)
    outcome = judge.evaluate(_candidate(_new("x.clamp(max=1e30).relu() * 2, x.argmax(1)")))
    assert isinstance(outcome, Failure) and outcome.reason == "wrong_values" and "specials" in outcome.summary


MOVES = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.randn(64, 16)]

def get_init_inputs():
    return []
"""


def test_a_reference_that_took_anothers_place_knows_what_that_one_knew(tmp_path: Path) -> None:
    honest = MOVES[: MOVES.index("def get_inputs")].replace("class Model", "class ModelNew")
    forgets = honest.replace(
        "return self.norm(x)", "y = self.norm(x)\n        self.norm.running_mean.zero_()\n        return y"
    )
    with context_judge(MOVES, tmp_path) as judge, patch.object(measure, "check_clock"):
        judge.open()
        assert isinstance(judge.evaluate(_candidate(honest)), Timed)
        judge.opened.cells.renew_reference()
        found = judge.evaluate(_candidate(forgets))
        assert isinstance(found, Failure) and found.reason == "wrong_state", found
        assert isinstance(judge.evaluate(_candidate(honest)), Timed)
        assert judge.opened.hidden_cases()
