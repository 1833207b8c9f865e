"""The plan of trials: every family where a case is small, the telling ones where it is large."""

from __future__ import annotations

import random
from unittest.mock import patch

from fakes.checked import Problem
from tilewright.judge.check import plan
from tilewright.judge.reference_process import families


def _families(size: int, case: int = 0) -> list[str]:
    trials = plan.plan(case, case_bytes=size, has_floats=True, redraws=True, rng=random.Random(1))
    return [t.family for t in trials]


def test_a_small_case_meets_every_family() -> None:
    assert set(_families(1000)) == {plan.OWN, *families.FAMILIES} - {plan.BRIEF}
    assert (plan.OWN, plan.SPECIALS) == (families.OWN, families.SPECIALS)


def test_large_cases_meet_what_tells_most() -> None:
    assert _families(3 << 30) == ["own", "own", "own", *plan.ALWAYS]
    assert len(_families(100 << 20)) == 1 + len(_families(1000, case=1)) == 8


def test_first_contents_are_met_again_under_other_parameters() -> None:
    for size in (1000, 3 << 30):
        first, second, third, *_ = plan.plan(0, case_bytes=size, has_floats=True, redraws=True, rng=random.Random(1))
        assert first.seed == third.seed != second.seed and not first.redraw and third.redraw


def test_without_floats_only_own_inputs_are_drawn() -> None:
    trials = plan.plan(0, case_bytes=10, has_floats=False, redraws=False, rng=random.Random(1))
    assert [t.family for t in trials] == ["own"] * 3 and not any(t.redraw for t in trials)


def test_beside_turns_only_where_results_jump_and_a_case_is_small() -> None:
    def found(size: int, *, steps: bool, floats: bool = True) -> list[plan.Trial]:
        trials = plan.plan(0, case_bytes=size, has_floats=floats, redraws=True, rng=random.Random(1), steps=steps)
        return [t for t in trials if t.family in (plan.BOUNDARY, plan.BRIEF)]

    assert found(1000, steps=False) == [] == found(3 << 30, steps=True)
    assert len(found(1000, steps=True)) > len(found(50 << 20, steps=True)) > 1
    assert found(50 << 20, steps=True, floats=False) == [] != found(1000, steps=True, floats=False)
    context, first, *others = found(1000, steps=True)
    assert context.family == plan.BRIEF and context.redraw and first.redraw and not any(t.redraw for t in others)


PAUSED = """
import time
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        {work}
        return x @ x.T > 0.5

def get_inputs():
    return [torch.rand(64, 64)]

def get_init_inputs():
    return []
"""


def test_what_is_tried_hangs_on_no_clock() -> None:
    """A machine that is busy, as one that a module sleeps on, changes no plan; many operations do."""

    def found(work: str) -> list[str]:
        return [t.family for t in Problem(PAUSED.format(work=work)).trials()]

    assert found("time.sleep(1.1)") == found("pass")
    assert plan.BOUNDARY in found("pass")
    with patch.object(plan, "_MOST_NOMINAL_S", 0.05):
        assert plan.BOUNDARY in found("pass") and plan.BOUNDARY not in found("for _ in range(900): x[0].neg()")
