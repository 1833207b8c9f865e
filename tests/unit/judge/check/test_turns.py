"""Inputs beside turns, through a check: what only they show is refused, and no order of summation is."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fakes.checked import Problem
from tilewright.judge.check.plan import BOUNDARY, BRIEF
from tilewright.judge.reference_process.double import Double
from tilewright.judge.wire import messages as wire

pytestmark = pytest.mark.each(3)

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 8) / 8)

    def forward(self, x, mask):
        h = x @ self.weight
        return {result}

def get_inputs():
    return [torch.randn(4, 64), (torch.arange(8)[None] // 2 == torch.arange(4)[:, None])]

def get_init_inputs():
    return []
"""
PEAK = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return F.layer_norm(x, (16384,)) > 100

def get_inputs():
    return [torch.randn(8, 16384)]

def get_init_inputs():
    return []
"""
MASKED = "h.masked_fill(~mask, -1e9) > 1.5"
ORDERS = {
    "sequential": "sum(x[:, k, None] * self.weight[k] for k in range(64))",
    "pairwise": "(x[:, :, None] * self.weight).view(-1, 2, 2, 2, 2, 2, 2, 8).sum(1).sum(1).sum(1).sum(1).sum(1).sum(1)",
    "blocked": "sum(a @ b for a, b in zip(x.split(16, 1), self.weight.split(16)))",
    "split": "(x[:, ::2] @ self.weight[::2]) + (x[:, 1::2] @ self.weight[1::2])",
    "reversed": "x.flip(1) @ self.weight.flip(0)",
    "folded": "(x * 0.3) @ (self.weight / 0.3)",
}


def _candidate(source: str, old: str = "", new: str = "") -> str:
    assert old in source
    return source.replace("class Model(", "class ModelNew(").replace(old, new, 1 if old else 0)


def _families(problem: Problem) -> list[str]:
    return [t.family for t in problem.trials()]


@pytest.mark.parametrize("result", [MASKED, "h.square() > 1e-6", "h.argmax(-1)", "(h > 1.5).float()"])
def test_a_constant_is_refused(result: str, tmp_path: Path) -> None:
    source = HEAD.format(result=result)
    constant = "torch.ones" if "square" in result else "torch.zeros"
    made = f"{constant}(({result}).shape, dtype=({result}).dtype)"
    assert Problem(source).refused(_candidate(source), tmp_path) == ""
    assert _refusal(source, f"return {result}", f"return {made}", tmp_path)


def _refusal(source: str, old: str, new: str, folder: Path) -> str:
    return Problem(source).refused(_candidate(source, old, new), folder)


def test_what_plain_draws_never_reach_is_reached(tmp_path: Path) -> None:
    """The largest of 16 384 normal values is four or five; 100 takes one that is alone."""
    problem = Problem(PEAK)
    constant = _candidate(PEAK, "return F", "return torch.zeros(x.shape, dtype=torch.bool) if True else F")
    plain = tuple(t for t in problem.trials() if t.family in ("own", "normal", "uniform", "wide", "spikes"))
    assert problem.refused(constant, tmp_path, plain) == ""
    assert BOUNDARY in problem.refused(constant, tmp_path)
    assert problem.refused(_candidate(PEAK), tmp_path) == ""


@pytest.mark.few
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("result", [MASKED, "F.layer_norm(h, (8,)) > 0.5", "torch.round(h * 24) / 24"])
def test_no_order_of_summation_is_refused(result: str, order: str, tmp_path: Path) -> None:
    assert _refusal(HEAD.format(result=result), "x @ self.weight", ORDERS[order], tmp_path) == ""


@pytest.mark.parametrize("result", [MASKED, "h.square() > 1e-6", "h.argmax(-1)"])
def test_a_lower_class_is_refused(result: str, tmp_path: Path) -> None:
    lower = "(x.view(torch.int32) & ~0x1FFF).view(torch.float32) @ self.weight"
    assert _refusal(HEAD.format(result=result), "x @ self.weight", lower, tmp_path)


def test_results_that_do_not_jump_cost_nothing(tmp_path: Path) -> None:
    source = HEAD.format(result="torch.relu(h).masked_fill(~mask, 0.0).softmax(-1)")
    smooth = Problem(source)
    assert not {BOUNDARY, BRIEF} & {*_families(smooth)}
    assert smooth.refused(_candidate(source), tmp_path) == ""
    assert not any(isinstance(asked, wire.Approach) for asked in smooth.cell.asked)
    assert {BOUNDARY, BRIEF} <= {*_families(Problem(HEAD.format(result=MASKED)))}


def test_comparisons_without_a_jump_are_soon_given_up(tmp_path: Path) -> None:
    """A rectifier that compares: one look, of some twenty runs in float64, and no call of the candidate."""
    source = HEAD.format(result="torch.where(h > 0, h, 0.1 * h)")
    problem = Problem(source)
    runs = 0
    truth = Double.truth

    def counted(self: Double, *args: Any, **named: Any) -> Any:
        nonlocal runs
        runs += bool(named.get("again"))
        return truth(self, *args, **named)

    with patch.object(Double, "truth", counted):
        assert problem.refused(_candidate(source), tmp_path) == ""
    asked = [a for a in problem.cell.asked if isinstance(a, wire.Approach)]
    assert len(asked) == 1 and 0 < runs < 25


def test_a_turn_of_parameters_where_inputs_are_whole_numbers(tmp_path: Path) -> None:
    """A table is looked up, and of one row a sign is told: a lower class shows beside it alone."""
    source = HEAD.format(result="(self.weight[x].sum(-1) > 0.1)").replace("        h = x @ self.weight\n", "")
    source = source.replace("torch.randn(4, 64)", "torch.randint(64, (32,))")
    problem = Problem(source)
    assert problem.refused(_candidate(source), tmp_path) == ""
    lower = _candidate(source, "self.weight[x]", "self.weight[x].bfloat16().float()")
    assert problem.refused(lower, tmp_path)
