"""The boundary family: where results turn, by groups found by trial; the module's own arithmetic is certain there."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process import boundary
from tilewright.judge.reference_process.describing import describe
from tilewright.judge.reference_process.families import FAMILIES, shortened
from tilewright.judge.reference_process.reference import Reference

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 24) / 32 ** 0.5)

    def forward(self, x, mask):
        h = x @ self.weight
        return {result}

def get_inputs():
    return [torch.randn(40, 32), torch.rand(40, 24) < 0.1]

def get_init_inputs():
    return []
"""


def _open(result: str) -> tuple[Reference, str, tuple[Tensor, ...]]:
    source = SOURCE.format(result=result)
    reference = Reference("/nowhere/p.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=1)
    described = describe(reference, 2, trace=False)
    return reference, described.args, reference.inputs(7, "own")[1]


def _wrong_rows(reference: Reference, args: str, moved: boundary.MovedRows, *, lower: bool) -> int:
    """Rows in which the module's result, or TF32's, is another than the truth."""
    truth = reference.double.truth(args, moved.inputs, 1)[0]
    weight = reference.subject.built.get_parameter("weight")
    kept = weight.detach().clone()
    x, mask = moved.inputs
    with torch.no_grad():
        if lower:
            weight.copy_(_cut(weight))
            x = _cut(x)
        got = reference.subject.run(args, [x, mask])
        weight.copy_(kept)
    return int(((got.double() - truth.double()).abs() > 1e-3).reshape(len(truth), -1).any(1).sum())


def _cut(t: Tensor) -> Tensor:
    return (t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(
    "result",
    [
        "h > 0.5", "h.masked_fill(~mask, -1e9) > 0.5", "h.masked_fill(~mask, -torch.inf) > 0.5", "h.square() > 1e-6",
        "F.layer_norm(h, (24,)) > 1", "h.argmax(1)", "h.topk(3).indices", "(h * 30).round().to(torch.int8)",
        "(h > 0.5).float()", "torch.round(h * 30) / 30", "F.one_hot(h.argmax(1), 24).float()",
    ],
)  # fmt: skip
def test_a_lower_class_loses_about_half_of_the_rows_and_the_module_s_own_next_to_none(result: str) -> None:
    reference, args, inputs = _open(result)
    moved = boundary.approach(reference, args, inputs, seed=3)
    assert moved.groups == 40 and moved.turned > 25
    assert _wrong_rows(reference, args, moved, lower=False) <= 2
    assert _wrong_rows(reference, args, moved, lower=True) >= moved.turned // 5
    assert torch.equal(moved.inputs[1], inputs[1]), "a mask is no draw that could be moved"


def test_both_sides_come_up() -> None:
    """Of rows of one comparison a constant is wrong in about half."""
    reference, args, inputs = _open("h.sum(1) > 9.0")
    moved = boundary.approach(reference, args, inputs, seed=5)
    truth = reference.double.truth(args, moved.inputs, 1)[0]
    assert moved.turned > 30 and 8 < int(truth.sum()) < 32
    assert not bool(reference.double.truth(args, inputs, 1)[0].float().mean() > 0.2), (
        "plain draws lie below, nearly all"
    )


def test_the_same_seed_gives_the_same_inputs() -> None:
    reference, args, inputs = _open("h > 0.5")
    first, again, other = (boundary.approach(reference, args, inputs, seed=s).inputs[0] for s in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_what_does_not_jump_keeps_its_draw() -> None:
    reference, args, inputs = _open("torch.where(h > 0, h, 0.1 * h)")
    moved = boundary.approach(reference, args, inputs, seed=3)
    assert moved.turned <= 2
    assert int((moved.inputs[0] != inputs[0]).any(1).sum()) == moved.turned


@pytest.mark.parametrize(
    ("result", "groups"),
    [("x > 0.5", 40 * 32), ("h > 0.5", 40), ("h.cumsum(0) > 0.5", 1), ("(h - h.mean(0)) > 0.5", 1)],
)
def test_groups_are_what_does_not_depend_on_one_another(result: str, groups: int) -> None:
    reference, args, inputs = _open(result)
    moved = boundary.approach(reference, args, inputs, seed=3)
    assert moved.groups == groups and moved.turned >= min(groups, 64)


def test_outputs_come_in_turn() -> None:
    """First those that are sure to jump."""
    reference, args, inputs = _open("(h.relu(), h > 0.5)")
    assert [boundary.approach(reference, args, inputs, seed=3, number=n).turned > 20 for n in (0, 1, 2)] == [
        True, False, True,
    ]  # fmt: skip


def test_the_state_is_moved_where_inputs_can_t_be_and_is_as_before_afterwards() -> None:
    reference, args, _ = _open("self.weight[:, 0] > 0.1 if mask is None else (self.weight.sum(0) > 0.1)")
    inputs = (torch.zeros(40, 32, dtype=torch.int32), torch.ones(40, 24, dtype=torch.bool))
    before = reference.subject.built.get_parameter("weight").detach().clone()
    reference.subject.built.forward = lambda x, mask: reference.subject.built.weight.sum(0) > 0.1  # type: ignore
    none, moved = (boundary.approach(reference, args, inputs, seed=9, state=s) for s in (False, True))
    assert none.state == () and none.turned == 0
    assert moved.turned == 1 and moved.state[0][0] == "weight"
    assert torch.equal(reference.subject.built.get_parameter("weight"), before)
    sums = moved.state[0][1].double().sum(0)
    assert float((sums - 0.1).abs().min()) < 1e-3


def test_twelve_bits() -> None:
    """Products are exact in fp32, the last bit is set, and TF32 loses it."""
    drawn = FAMILIES["twelve_bits"](torch.empty(1000), torch.Generator().manual_seed(1))
    assert torch.equal(shortened(drawn), drawn)
    assert bool((drawn.view(torch.int32) & 0x1FFF == 0x1000).all())
    other = drawn.flip(0)
    assert torch.equal((drawn * other).double(), drawn.double() * other.double())
    assert bool((_cut(drawn) != drawn).all())
    special = torch.tensor([0.0, torch.inf, -torch.inf, 1.0])
    assert torch.equal(shortened(special)[:3], special[:3])


def test_a_redraw_of_twelve_bits() -> None:
    reference, _, _ = _open("h")
    reference.state.redraw(8, context=True)
    weight = reference.subject.built.get_parameter("weight").detach()
    assert torch.equal(shortened(weight), weight)


@pytest.mark.parametrize("end", ["lone", "zeros", "large"])
def test_rows_lie_nearer_to_the_turn_than_lower_classes_round_however_long_the_way(end: str) -> None:
    """The way to a row that is a million times as large, or that shrinks to a thousandth, is long beside the distance
    that counts there; and small rows stand beside large ones."""
    reference, args, inputs = _open("h.square() > 1e-6")
    with patch.object(boundary, "ENDS", (end,)):
        moved = boundary.approach(reference, args, inputs, seed=5)
    x, weight = moved.inputs[0].double(), reference.subject.built.get_parameter("weight").detach().double()
    distances = ((x @ weight).abs() - 1e-3).abs() / (x.abs() @ weight.abs())
    turned = (moved.inputs[0] != inputs[0]).any(1)
    assert int(turned.sum()) == moved.turned >= 5
    assert float((distances.amin(1)[turned] < 2.0**-15).double().mean()) > 0.3, "three in four, by chance"
    assert bool((distances.amin(1)[turned] < 2.0**-9).all())
    assert _wrong_rows(reference, args, moved, lower=False) == 0
