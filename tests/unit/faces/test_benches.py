"""The flags of a bench: what goes to each problem's command, and what does not go together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.faces.benches import BenchRequest, campaign_of
from tilewright.faces.folders import Many, tasks_object
from tilewright.facts.errors import UserError
from tilewright.run.campaign import Campaign

NOBODY = BenchRequest(strategy=None, model=None, base_url="", effort=None, wait=True)
MAILBOX = BenchRequest(strategy="oneshot", model="mailbox:box", base_url="", effort="low", wait=False)


def described(folder: Path, budget: str, asked: BenchRequest) -> Campaign:
    (folder / "1_a.py").touch()
    return campaign_of(str(folder), Many(), target="cpu", budget=budget, settings=["--seed", "0"], asked=asked)


def test_without_a_model_the_flags_are_those_of_ever(tmp_path: Path) -> None:
    campaign = described(tmp_path, "", NOBODY)
    assert campaign.flags == ["--target", "cpu", "--budget", "120s", "--seed", "0"]
    assert not campaign.asks and "stamp" in campaign.made_by
    assert described(tmp_path, "5m", NOBODY).flags[3] == "300s"


def test_a_model_goes_to_every_problem_with_its_budget(tmp_path: Path) -> None:
    campaign = described(tmp_path, "40calls,2h", MAILBOX)
    assert campaign.flags == [
        "--target", "cpu", "--budget", "7200s,40calls", "--seed", "0", "--strategy", "oneshot", "--model",
        "mailbox:box", "--effort", "low",
    ]  # fmt: skip
    assert (campaign.budget_s, campaign.wait, campaign.asks) == (7200.0, False, True)
    assert described(tmp_path, "", MAILBOX).budget_s == 3600.0


@pytest.mark.parametrize(
    ("strategy", "model", "said"),
    [("cutegen", None, "name one with --model"), ("catalog", "openai:x", "asks no model"), (None, "m:x", "")],
)
def test_a_strategy_and_a_model_go_together_before_anything_runs(
    tmp_path: Path, strategy: str | None, model: str | None, said: str
) -> None:
    asked = BenchRequest(strategy=strategy, model=model, base_url="", effort=None, wait=True)
    if not said:
        assert "--model" in described(tmp_path, "", asked).flags
        return
    with pytest.raises(UserError, match=said):
        described(tmp_path, "", asked)


def test_another_machine_evaluates_every_problem_and_nothing_is_measured_here(tmp_path: Path) -> None:
    there = replace(MAILBOX, evaluator="bundle:box")
    campaign = described(tmp_path, "", there)
    assert campaign.flags[-2:] == ["--evaluator", "bundle:box"] and campaign.elsewhere
    assert not described(tmp_path, "", MAILBOX).elsewhere
    found = tasks_object([{"status": "pending"}, {"machine": {"device": "there"}}], {}, machine=None)
    assert found["machine"] == {"device": "there"}
    with pytest.raises(UserError, match="write bundle:DIR"):
        described(tmp_path, "", replace(MAILBOX, evaluator="box"))
