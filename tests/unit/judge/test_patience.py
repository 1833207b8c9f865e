"""On a machine that others keep busy nothing is accepted and nobody accused; what shows without a clock is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.judges import context_judge
from tilewright.edges.gpu.machine import identity
from tilewright.edges.problems import read_problem
from tilewright.edges.sandbox.strain import Books, Strain
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import TooBusy, UserError
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure, Interval, Timed
from tilewright.facts.run import Request, Timing
from tilewright.judge import patience, time_case, tune_case
from tilewright.judge.evaluate import Judge
from tilewright.judge.timing.measure import Implausible
from tilewright.run import opened
from tilewright.run.evaluator import Evaluator
from tilewright.run.places import Places

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
    with context_judge(SOURCE, tmp_path / "work") as opened:
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


@pytest.mark.few(0)
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
    monkeypatch.setattr(patience.Patience, "require", lambda *_, **__: None)  # the load comes once it is being timed
    if reason == "implausible":  # load makes nothing quicker, unless the peaks were measured under it
        assert isinstance(judge.evaluate(_candidate(HONEST)), Failure)
        judge.opened.machine = replace(judge.opened.machine, under_load=True)
    with pytest.raises(TooBusy) as busy:
        judge.evaluate(_candidate(HONEST))
    assert busy.value.lasts == (reason == "implausible")


def test_a_load_of_its_own_that_comes_and_goes_is_held_against_it(
    judge: Judge, load: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.judge.cell_process.CellUsage.comes_and_goes", True)
    load(1.0, 0.9)
    refused = judge.evaluate(_candidate(HONEST), foreign=True)
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
    found = patience.when_calm(tries, judge.opened.machine, budget_s=1.0, say=said.append, renew=tries.renew)
    assert (found, tries.made, tries.renewed, len(said)) == ("judged", made, made - 1, made - 1)


def test_nobody_wins_by_trying(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "calm_within", lambda longest_s, needed: True)
    tries = Tries(*[True] * 100)
    with pytest.raises(TooBusy):
        patience.when_calm(tries, judge.opened.machine, budget_s=1.0, say=print, renew=tries.renew)
    assert tries.made == 3


def test_without_calm_nothing_is_tried_again(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "calm_within", lambda longest_s, needed: False)
    tries = Tries(True, False)
    with pytest.raises(TooBusy):
        patience.when_calm(tries, judge.opened.machine, budget_s=1.0, say=print, renew=tries.renew)
    assert tries.made == 1


def test_what_another_try_can_not_change_is_not_tried_again(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "calm_within", lambda longest_s, needed: True)
    tries = Tries(True, False, lasts=True)
    with pytest.raises(TooBusy):
        patience.when_calm(tries, judge.opened.machine, budget_s=1.0, say=print, renew=tries.renew)
    assert tries.made == 1


# ---- a look at the load before what needs a clock


def _patient(said: list[str], *, budget_s: float = 6.0) -> patience.Patience:
    machine = replace(identity("cpu"), processors=4)
    return patience.Patience(machine, budget_s=budget_s, say=said.append)


def test_where_others_leave_enough_nothing_is_said_and_nothing_waits(load: Callable[[float], None]) -> None:
    load(0.1)
    said: list[str] = []
    patient = _patient(said)
    patient.tell()
    assert patient.calm("tuning") and not said
    patient.require("tuning")


def test_a_load_is_told_at_once_with_how_long_is_waited(load: Callable[[float], None]) -> None:
    load(0.5)
    said: list[str] = []
    _patient(said).tell()
    assert len(said) == 1 and "other processes had 2.0 of 4 processors" in said[0] and "up to 60 s" in said[0]


def test_it_goes_on_as_soon_as_others_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter((1.0, 0.9, 0.0))
    monkeypatch.setattr(Strain, "between", lambda *_: _strain(next(shares)))
    said: list[str] = []
    _patient(said).require("tuning")
    assert next(shares, None) is None and "tuning waits for calm, for up to 60 s" in said[0]


def test_where_calm_does_not_come_it_says_so_and_is_not_tried_again(load: Callable[[float], None]) -> None:
    load(1.0)
    said: list[str] = []
    patient = _patient(said, budget_s=0.06)
    assert not patient.calm("measuring")
    with pytest.raises(TooBusy, match="tuning has waited 1 s for calm") as busy:
        patient.require("tuning")
    assert busy.value.lasts


def test_others_that_had_the_device_in_turn_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[tuple[float, float]] = []

    def between(before: Books, after: Books) -> Strain:
        times.append((before.at_s, after.at_s))
        return _strain(0.0)

    monkeypatch.setattr(Strain, "between", between)
    patient = _patient([])
    begun = patient._books.at_s
    patient.begin()
    patient.require("timing")
    assert times[0][0] > begun and times[0][1] - times[0][0] >= 0.2


def test_nothing_is_timed_or_tuned_before_calm(judge: Judge, load: Callable[[float], None]) -> None:
    def timed(*_: object, **__: object) -> None:
        raise AssertionError("timed under load")

    load(1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_case.CaseTiming, "run", timed)
        patch.setattr(tune_case, "sweep", timed)
        with pytest.raises(TooBusy, match="timing has waited"):
            judge.evaluate(_candidate(HONEST))
        with pytest.raises(TooBusy, match="tuning has waited"):
            judge.tune(_candidate(HONEST), "fused_0", [()])


@pytest.mark.thorough
def test_what_may_be_a_foreign_candidates_own_load_is_no_reason_not_to_look(
    judge: Judge, load: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who burns processors in processes that come and go would never be watched."""
    for hidden in (0.0, 0.9):
        load(1.0, hidden)
        with pytest.raises(TooBusy, match="timing has waited"):
            judge.evaluate(_candidate(HONEST))
        with pytest.raises(TooBusy) as busy:
            judge.evaluate(_candidate(HONEST), foreign=True)
        assert "has waited" not in str(busy.value)
    monkeypatch.setattr("tilewright.judge.cell_process.CellUsage.comes_and_goes", True)
    refused = judge.evaluate(_candidate(HONEST), foreign=True)
    assert isinstance(refused, Failure) and refused.reason == "works_aside"


def _measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> tuple[list[str], Evaluator]:
    """A run on a machine whose rates are not known, and what is measured when."""
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path))
    path = tmp_path / "problem.py"
    path.write_text(source)
    problem = read_problem(path, target="cpu")
    request = Request(run="r", problem=problem, strategy="catalog", seed=0, budget_s=1.0, timing=Timing(budget_s=0.001))
    order: list[str] = []

    def measured(*_: object, **__: object) -> Machine:
        order.append("measured")
        return replace(identity("cpu"), copy_bytes_per_s=1e9)

    monkeypatch.setattr(opened, "measured_machine", measured)
    places = Places(out=tmp_path / "run", cache=tmp_path / "cache")
    return order, Evaluator(request, places=places, say=order.append)


def test_a_mistake_in_the_problem_shows_before_the_machine_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = SOURCE.replace("torch.tanh(x)", "torch.tanh(x @ torch.ones(3, 3))")
    order, bench = _measured(tmp_path, monkeypatch, wrong)
    with bench, pytest.raises(UserError, match="problem"):
        bench.judge  # noqa: B018
    assert "measured" not in order


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_the_machine_is_measured_once_the_problem_has_run_and_others_are_calm(
    others: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[float], None]
) -> None:
    order, bench = _measured(tmp_path, monkeypatch, SOURCE)
    load(others)
    if others:
        with bench, pytest.raises(TooBusy, match="measuring this machine has waited"):
            bench.judge  # noqa: B018
        assert "measured" not in order
        return
    with bench:
        assert bench.machine.copy_bytes_per_s == 1e9 and bench.judge.opened.machine is bench.machine
    assert order.count("measured") == 1
