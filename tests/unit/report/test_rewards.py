"""Rewards of verdicts: the values of every formula, and what no gain is claimed for."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from tilewright.facts.ticket import TicketVerdict
from tilewright.report import Formula, RewardRule, reward


def judged(
    eager: float = 2.0, compiled: float | None = 1.5, claimed: tuple[str, ...] = ("eager", "compile")
) -> TicketVerdict:
    lows = (("eager", eager),) if compiled is None else (("eager", eager), ("compile", compiled))
    return TicketVerdict(accepted=True, lows=lows, claimed=claimed, shown="{}")


REFUSED = TicketVerdict(accepted=False, lows=(), claimed=(), shown="{}")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [("log_ratio", math.log(2)), ("right_log_ratio", 1 + math.log(2)), ("ratio", 2.0), ("right", 1.0)],
)
def test_every_formula_has_its_value_and_zero_for_what_is_refused(formula: Formula, expected: float) -> None:
    assert reward(judged(), RewardRule(formula=formula)) == pytest.approx(expected)
    assert reward(REFUSED, RewardRule(formula=formula)) == 0.0
    assert reward(judged(eager=1e9), RewardRule(formula=formula, cap=0.5)) == 0.5


def test_all_formulas_are_tested() -> None:
    assert set(get_args(Formula)) == {"log_ratio", "right_log_ratio", "ratio", "right"}


@pytest.mark.parametrize(("formula", "expected"), [("log_ratio", 0.0), ("right_log_ratio", 1.0), ("ratio", 1.0)])
def test_a_gain_within_noise_and_a_loss_count_as_none(formula: Formula, expected: float) -> None:
    assert reward(judged(eager=1.3, claimed=()), RewardRule(formula=formula)) == expected
    assert reward(judged(eager=0.3, claimed=()), RewardRule(formula=formula)) == expected


def test_the_baseline_is_the_one_that_is_asked_for() -> None:
    asked = {name: reward(judged(), RewardRule(formula="ratio", against=name)) for name in ("eager", "compile", "best")}  # type: ignore[arg-type]
    assert asked == {"eager": 2.0, "compile": 1.5, "best": 1.5}
    assert reward(judged(claimed=("eager",)), RewardRule(formula="ratio", against="best")) == 1.0


def test_nothing_is_said_against_a_baseline_that_was_not_timed() -> None:
    assert reward(judged(compiled=None), RewardRule(against="compile")) is None
    assert reward(judged(compiled=None), RewardRule(formula="ratio", against="best")) == 2.0
    assert reward(REFUSED, RewardRule(against="compile")) == 0.0
