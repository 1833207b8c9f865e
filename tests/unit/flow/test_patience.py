"""On a machine that others keep busy nothing is accepted and nobody accused; what shows without a clock is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.judges import brief_judge
from tilewright.edges.sandbox.strain import Strain
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import TooBusy
from tilewright.facts.outcome import Failure, Interval, Timed
from tilewright.flow import patience, time_case
from tilewright.flow.evaluate import Judge
from tilewright.stages.timing.measure import Implausible

SOURCE = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""
HONEST = SOURCE.partition("def get_inputs")[0].replace("Model", "ModelNew")
WRONG = HONEST.replace("tanh(x)", "tanh(x) + 1")


def _strain(others: float, hidden: float = 0.0) -> Strain:
    return Strain(others=others, hidden=hidden, throttled=0.0, processors=4)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Whatever the books say, others have had this share of the processors."""

    def load(others: float, hidden: float = 0.0) -> None:
        monkeypatch.setattr(Strain, "between", lambda *_: _strain(others, hidden))

    return load


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
    monkeypatch.setattr(patience, "_BUDGETS", 0.0)  # calm is not waited for
    with brief_judge(SOURCE, tmp_path / "work") as opened:
        opened.open()
        yield opened


def _candidate(text: str) -> Candidate:
    return Candidate(files=(SourceFile(path="model.py", text=text),))


def test_under_load_an_honest_one_is_neither_accepted_nor_accused(judge: Judge, load: Callable[[float], None]) -> None:
    load(1.0)
    with pytest.raises(
        TooBusy, match=r"too busy to judge: other processes had 4\.0 of 4 processors.*where nothing else"
    ):
        judge.evaluate(_candidate(HONEST))
    wrong = judge.evaluate(_candidate(WRONG))
    assert isinstance(wrong, Failure) and wrong.reason == "wrong_values", "no clock is needed to see that"
    load(0.0)
    assert isinstance(judge.evaluate(_candidate(HONEST)), Timed)


@pytest.mark.parametrize("reason", ["clock_disagrees", "works_aside", "works_between", "remembers", "implausible"])
def test_what_others_load_may_make_of_an_honest_one_is_no_refusal(
    reason: str, judge: Judge, load: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def accuse(*_: object, **__: object) -> Interval:
        raise Implausible(reason, "it seems so")

    monkeypatch.setattr(time_case.timing, "check_clock", accuse)
    load(0.0)
    refused = judge.evaluate(_candidate(HONEST))
    assert isinstance(refused, Failure) and refused.reason == reason
    load(1.0)
    if reason == "implausible":  # load makes nothing quicker, unless the peaks were measured under it
        assert isinstance(judge.evaluate(_candidate(HONEST)), Failure)
        judge._machine = replace(judge._machine, under_load=True)
    with pytest.raises(TooBusy) as busy:
        judge.evaluate(_candidate(HONEST))
    assert busy.value.lasts == (reason == "implausible")


def test_a_load_of_its_own_that_comes_and_goes_is_held_against_it(
    judge: Judge, load: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.edges.sandbox.cell.Cell.comes_and_goes", True)
    load(1.0, 0.9)
    refused = judge.evaluate(_candidate(HONEST))
    assert isinstance(refused, Failure) and refused.reason == "works_aside" and "no excuse" in refused.summary


class Tries:
    def __init__(self, *busy: bool, lasts: bool = False) -> None:
        self.busy, self.made, self.renewed, self.lasts = list(busy), 0, 0, lasts

    def __call__(self) -> str:
        self.made += 1
        if self.busy.pop(0):
            raise TooBusy("others had it", lasts=self.lasts)
        return "judged"

    def renew(self) -> None:
        self.renewed += 1


@pytest.mark.parametrize(("busy", "made"), [((False,), 1), ((True, False), 2), ((True, True, False), 3)])
def test_it_is_judged_again_when_others_are_gone(
    busy: tuple[bool, ...], made: int, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "calm_within", lambda longest_s, needed: True)
    tries, said = Tries(*busy), []
    found = patience.when_calm(tries, judge._machine, budget_s=1.0, say=said.append, renew=tries.renew)
    assert (found, tries.made, tries.renewed, len(said)) == ("judged", made, made - 1, made - 1)


def test_nobody_wins_by_trying(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "calm_within", lambda longest_s, needed: True)
    tries = Tries(*[True] * 100)
    with pytest.raises(TooBusy):
        patience.when_calm(tries, judge._machine, budget_s=1.0, say=print, renew=tries.renew)
    assert tries.made == 3


def test_without_calm_nothing_is_tried_again(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "calm_within", lambda longest_s, needed: False)
    tries = Tries(True, False)
    with pytest.raises(TooBusy):
        patience.when_calm(tries, judge._machine, budget_s=1.0, say=print, renew=tries.renew)
    assert tries.made == 1


def test_what_another_try_can_not_change_is_not_tried_again(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "calm_within", lambda longest_s, needed: True)
    tries = Tries(True, False, lasts=True)
    with pytest.raises(TooBusy):
        patience.when_calm(tries, judge._machine, budget_s=1.0, say=print, renew=tries.renew)
    assert tries.made == 1
