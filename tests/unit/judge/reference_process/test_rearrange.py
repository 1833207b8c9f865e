"""Masks, flags and indices are moved where the module bears it, put back as they were, and told of where nothing moves
them."""

from __future__ import annotations

import pytest
import torch

from tilewright.judge.candidate_process.state import named_state
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process.describing import describe
from tilewright.judge.reference_process.rearrange import WAYS, rearranged, runs_on_cpu
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.wire.messages import Rearranged

HEAD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand(4, 24, 24)]

def get_init_inputs():
    return []
"""
TRIANGLE = 'self.register_buffer("mask", torch.ones(24, 24).tril().bool())'


def _open(init: str, forward: str) -> Reference:
    source = HEAD.format(init=init, forward=forward)
    reference = Reference("/nowhere/problem.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=3)
    describe(reference, 1, trace=False)
    reference.construct(0, seed=3)
    return reference


def _rearranged(reference: Reference, seed: int = 7) -> Rearranged:
    text, inputs = reference.inputs(1, "own")
    return reference.state.rearrange(seed, text, inputs)


def _state(reference: Reference) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone() for n, t in named_state(reference.subject.built).items()}


def test_a_mask_is_moved_so_that_no_row_is_empty_and_put_back() -> None:
    reference = _open(TRIANGLE, 'return torch.softmax(x.masked_fill(~self.mask, float("-inf")), -1)')
    before = _state(reference)["mask"]
    found = _rearranged(reference)
    after = _state(reference)["mask"]
    assert found.moved == ("mask",) and not found.stuck
    assert not torch.equal(after, before) and int(after.sum()) == int(before.sum()) and bool(after.any(-1).all())
    assert not torch.equal(_state(reference)["mask"], before)
    reference.state.put_back()
    assert torch.equal(_state(reference)["mask"], before)


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ('self.register_buffer("all", torch.ones(24, dtype=torch.bool))', "return x * self.all"),
        ('self.register_buffer("flag", torch.tensor(True))', "return x.sin() if self.flag else x.cos()"),
        ('self.register_buffer("order", torch.arange(24))', "return x[:, self.order]"),
        ('self.order = nn.Parameter(torch.arange(24), requires_grad=False)', "return x[:, self.order]"),
        ('self.register_buffer("kept", (torch.arange(24) % 3 > 0).float())', "return x * (self.kept == 0)"),
    ],
)  # fmt: skip
def test_what_shows_is_moved(init: str, forward: str) -> None:
    reference = _open(init, forward)
    (before,) = _state(reference).values()
    found = _rearranged(reference)
    (after,) = _state(reference).values()
    assert len(found.moved) == 1 and not torch.equal(before, after)
    if before.numel() > 1 and before.dtype != torch.bool:
        assert torch.equal(before.sort().values, after.sort().values)


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ('self.register_buffer("ids", torch.arange(24))', "return x * 2.0"),
        (
            'self.register_buffer("size", torch.tensor([24, 4, 24]))',
            "return x.reshape(self.size.tolist()) if self.size[1] == 4 and self.size[0] == 24 else 1 / 0",
        ),
    ],
)
def test_what_no_way_moves_is_left_alone_and_told_of(init: str, forward: str) -> None:
    reference = _open(init, forward)
    before = _state(reference)
    found = _rearranged(reference)
    after = _state(reference)
    assert not found.moved and found.stuck == tuple(before)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_calls_move_is_left_to_them() -> None:
    reference = _open(
        'self.register_buffer("calls", torch.arange(24))', "self.calls.add_(1); return x * (self.calls % 2)"
    )
    assert _rearranged(reference) == Rearranged()


def test_only_what_has_one_of_the_marks_is_moved() -> None:
    both = f'{TRIANGLE}; self.register_buffer("other", torch.ones(24, 24).triu().bool())'
    reference = _open(both, 'return torch.softmax(x.masked_fill(~self.mask, float("-inf")), -1) * self.other')
    (key,) = (m.key for m in reference.state.mark() if m.name == "mask")
    text, inputs = reference.inputs(1, "own")
    found = reference.state.rearrange(7, text, inputs, (key,))
    assert found.moved == ("mask",) and not found.stuck
    assert torch.equal(_state(reference)["other"], torch.ones(24, 24).triu().bool())
    reference.state.put_back()
    assert torch.equal(_state(reference)["mask"], torch.ones(24, 24).tril().bool())


@pytest.mark.parametrize("way", WAYS[:4])
def test_changing_places_keeps_what_there_is(way: str) -> None:
    tensor = torch.arange(60).reshape(5, 12)
    twin = tensor.clone()
    assert rearranged(tensor, way, 3) and rearranged(twin, way, 3)
    assert torch.equal(tensor, twin)
    assert torch.equal(tensor.flatten().sort().values, torch.arange(60))


def test_an_index_that_leads_out_of_a_tensor_is_seen_on_the_cpu() -> None:
    reference = _open('self.register_buffer("order", torch.arange(24).flip(0))', "return x[:, self.order]")
    subject = reference.subject
    text, (whole,) = reference.inputs(1, "own")
    assert runs_on_cpu(subject, text, [whole], flops=0.0)
    assert not runs_on_cpu(subject, text, [whole[:, :23]], flops=0.0)
    assert not runs_on_cpu(subject, text, [whole], flops=1e15), "it would take long"


@pytest.mark.parametrize("held", [[0, 3, 4, 9, 24], [0, 0, 5, 5, 24], [24, 9, 4, 3, 0]])
def test_whole_numbers_in_order_stay_in_order_between_their_ends(held: list[int]) -> None:
    init = f'self.register_buffer("edges", torch.tensor({held}))'
    reference = _open(init, "return torch.bucketize(x * 24, self.edges.sort().values) + 0.0 * x")
    found = _rearranged(reference)
    after = _state(reference)["edges"].tolist()
    assert found.moved == ("edges",) and after != held
    assert after == sorted(after, reverse=held[0] > held[-1]) and (after[0], after[-1]) == (held[0], held[-1])
    assert len(set(after)) == len(after) or len(set(held)) < len(held)


def test_a_range_is_rearranged_as_indices_are() -> None:
    reference = _open('self.register_buffer("order", torch.arange(24))', "return x[..., self.order]")
    found = _rearranged(reference)
    after = _state(reference)["order"].tolist()
    assert found.moved == ("order",) and after != sorted(after) and sorted(after) == list(range(24))
