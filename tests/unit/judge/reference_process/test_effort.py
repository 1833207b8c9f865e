"""What is given up for taking too long hangs on the module's operations, and on no clock."""

from __future__ import annotations

import time

import pytest
import torch

from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.load import CodeRaised
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process.effort import AppealEffort
from tilewright.judge.reference_process.ensemble import Ensemble, Question
from tilewright.judge.reference_process.reference import Reference

SOURCE = """
import time
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        time.sleep(PAUSE)
        return (x @ x.T).relu()

def get_inputs():
    return [torch.rand(64, 64)]

def get_init_inputs():
    return []
"""


def _ensemble(limit_s: float, *, pause_s: float = 0.0, rows: int = 64) -> Ensemble:
    source = SOURCE.replace("PAUSE", str(pause_s))
    reference = Reference("/nowhere/p.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=1)
    x = torch.rand(rows, 64)
    return Ensemble(reference, Question(args=values.encode([x], []), inputs=[x], seed=1, limit_s=limit_s))


def test_a_slow_machine_gives_up_no_earlier() -> None:
    started = time.monotonic()
    _ensemble(0.05, pause_s=0.03).budget()
    assert time.monotonic() - started > 0.5


def test_what_is_too_much_is_given_up_before_it_is_run() -> None:
    _ensemble(0.3, rows=64)
    with pytest.raises(CodeRaised, match="would take"):
        _ensemble(0.3, rows=2048)


def test_products_are_counted_by_their_flops_and_views_are_not() -> None:
    effort, x = AppealEffort(), torch.ones(8, 16)
    effort.add(torch.ops.aten.t.default, (x,), {}, x.T)
    assert effort.seconds() == 0.0
    effort.add(torch.ops.aten.mm.default, (x, x.T), {}, x @ x.T)
    assert (effort.operations, effort.elements, effort.flops) == (1, 8 * 16 * 2 + 64, 2 * 8 * 8 * 16)
