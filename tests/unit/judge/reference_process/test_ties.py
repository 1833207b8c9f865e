"""Inputs that tie with what a module compares them with; and what comes of NaN where results are exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process.budget import appeal
from tilewright.judge.reference_process.describing import describe
from tilewright.judge.reference_process.ensemble import Question
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.reference_process.structure import Structure
from tilewright.judge.reference_process.ties import tied

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-1.5, 1.5, 11))

    def forward(self, x):
        return torch.bucketize(x, self.edges), x > 0.5

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""


class Binned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-1.5, 1.5, 11))
        self.limit, self.rounded = 0.75, 0.1

    def forward(self, x: Tensor) -> Tensor:
        return torch.bucketize(x, self.edges) + (x > self.limit) + (x > 0.3125)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_some_elements_and_whole_rows_are_values_of_the_module(dtype: torch.dtype) -> None:
    module, own = Binned(), torch.randn(64, 128, dtype=dtype)
    x = tied(module, own, 1, Structure())
    values = [*module.edges.to(dtype).tolist(), 0.75, 0.3125, 0.0]
    for value in values:
        assert bool((x == value).any()), value
    hit = torch.isin(x, torch.tensor(values, dtype=dtype))
    assert 0.25 < float(hit.float().mean()) < 0.5
    rows = (x == x[:, :1]).all(-1)
    assert 1 <= int(rows.sum()) < 32 and bool(hit[rows].all())
    assert dtype == torch.float64 or not bool((x.double() == 0.1).any())  # which rounding alone would decide


def test_ties_tell_which_bin_an_edge_belongs_to_and_follow_state_that_has_moved() -> None:
    reference = Reference("/nowhere/problem.py", SOURCE, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=3)
    describe(reference, 1, trace=False)
    reference.state.redraw(5)
    edges = reference.subject.built.edges
    assert isinstance(edges, Tensor)
    _, (x,) = reference.inputs(9, "ties")
    assert bool((torch.bucketize(x, edges) != torch.bucketize(x, edges, right=True)).any())
    assert bool(((x >= 0.5) != (x > 0.5)).any())


def test_what_whole_numbers_make_of_nan_is_open_and_nothing_else_is() -> None:
    reference = Reference("/nowhere/problem.py", SOURCE, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=3)
    text, (x,) = reference.inputs(1, "own")
    x[2, 3] = float("nan")
    edges = reference.subject.built.edges
    assert isinstance(edges, Tensor)
    own = (torch.bucketize(x, edges), x > 0.5)
    other = ((x.unsqueeze(-1) > edges).sum(-1), x > 0.5)
    assert int((own[0] != other[0]).sum()) == 1
    question = Question(args=text, inputs=[x], seed=7)
    assert all(j.share <= 1 for j in appeal(reference, question, got=other, own=own))
    wrong = tuple(t.clone() for t in other)
    wrong[0][5, 5] += 1
    wrong[1][5, 5] ^= True
    assert all(j.share > 1 for j in appeal(reference, question, got=wrong, own=own))
