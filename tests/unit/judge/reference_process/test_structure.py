"""What own draws promise, other distributions keep; what they merely happen to be, they do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tilewright.judge.candidate_process.load import CodeRaised
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process import families
from tilewright.judge.reference_process.describing import describe
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.reference_process.structure import Structure, structure_of
from tilewright.judge.wire.messages import Variant

DRAWS = {
    "triangular": lambda: torch.rand(16, 16).tril(),
    "symmetric": lambda: (lambda a: (a + a.T) / 2)(torch.rand(16, 16)),
    "probabilities": lambda: torch.rand(8, 20).softmax(-1),
    "log probabilities": lambda: torch.rand(8, 20).log_softmax(-1),
    "unit rows": lambda: nn.functional.normalize(torch.randn(8, 20), dim=-1),
    "sorted": lambda: torch.randn(8, 20).sort(-1).values,
    "signs": lambda: torch.randint(0, 2, (8, 20)).float() * 2 - 1,
    "one hot": lambda: nn.functional.one_hot(torch.randint(0, 20, (8,)), 20).float(),
    "whole numbers": lambda: torch.randint(0, 1000, (8, 20)).float(),
    "mask of minus infinity": lambda: torch.zeros(16, 16).masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf),
    "unit diagonal": lambda: torch.rand(16, 16).fill_diagonal_(1.0),
}


def _holds(name: str, t: Tensor) -> bool:
    match name:
        case "triangular":
            return torch.equal(t, t.tril())
        case "symmetric":
            return torch.equal(t, t.T)
        case "probabilities":
            return bool((t >= 0).all()) and torch.allclose(t.sum(-1), torch.ones(8), atol=1e-5)
        case "log probabilities":
            return torch.allclose(t.logsumexp(-1), torch.zeros(8), atol=1e-5)
        case "unit rows":
            return torch.allclose(t.norm(dim=-1), torch.ones(8), atol=1e-5)
        case "sorted":
            return bool((t.diff(dim=-1) >= 0).all())
        case "signs":
            return bool((t.abs() == 1).all())
        case "one hot":
            return bool((t.sum(-1) == 1).all()) and bool(((t == 0) | (t == 1)).all())
        case "whole numbers":
            return bool((t == t.round()).all()) and bool((t >= 0).all())
        case "mask of minus infinity":
            return torch.equal(t, DRAWS[name]())
    return bool((t.diagonal() == 1).all())


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("family", [f for f in families.FAMILIES if f != families.SPECIALS])
def test_what_is_promised_is_kept(name: str, family: str) -> None:
    torch.manual_seed(1)
    own, other = DRAWS[name](), DRAWS[name]()
    found = families.redistribute(own, family, 7, structure_of(own, other))
    assert _holds(name, found)


def test_a_triangle_is_drawn_anew_within_its_places() -> None:
    torch.manual_seed(1)
    own, other = torch.rand(16, 16).tril(), torch.rand(16, 16).tril()
    found = families.redistribute(own, "normal", 7, structure_of(own, other))
    assert int((found != 0).sum()) == 16 * 17 // 2 and not bool((found == own).tril().any())


def test_plain_numbers_promise_nothing() -> None:
    for draw in (torch.randn, torch.rand):
        found = structure_of(draw(8, 50), draw(8, 50))
        assert found.fixed is None and not found.keeps_own
        assert found.without("not negative") == Structure()
    assert structure_of(torch.ones(3), torch.ones(3)) == Structure()  # too few to tell


SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return OPERATION

def get_inputs():
    return [torch.rand(16, 16) + 0.1]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("operation", "negative"), [("x.relu()", True), ("x.sqrt()", False), ("x.log()", False)])
def test_positive_is_a_promise_where_the_module_takes_nothing_else(operation: str, negative: bool) -> None:
    source = SOURCE.replace("OPERATION", operation)
    reference = Reference("/nowhere/p.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=1)
    describe(reference, 1, trace=False)
    (drawn,) = reference.inputs(5, "normal")[1]
    assert bool((drawn < 0).any()) == negative


def test_only_squares_are_symmetric() -> None:
    drawn = [DRAWS["symmetric"]() for _ in range(2)]
    structure = structure_of(drawn[0], drawn[1])
    assert structure.suits(drawn[0][:7, :7]) and not structure.suits(drawn[0][:7])
    assert structure_of(*(t[:7] for t in drawn)).suits(drawn[0][:7])


@pytest.mark.parametrize(
    ("drawn", "grows"),
    [("torch.rand(16, 16)", True), ("torch.rand(16, 16).tril()", False), ("(torch.rand(16, 16) > 0.5).tril()", False)],
)
def test_what_is_promised_of_certain_places_is_not_repeated(drawn: str, grows: bool) -> None:
    source = SOURCE.replace("OPERATION", "x * 2").replace("torch.rand(16, 16) + 0.1", drawn)
    reference = Reference("/nowhere/p.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=1)
    describe(reference, 1, trace=False)
    for extent in (13, 33):
        reference.add_case(0, Variant(kwargs="{}", batch=0, extents=((16, extent),), strided=False))
    shapes = []
    for case in (1, 2):
        reference.construct(case, seed=1)
        try:
            shapes.append(tuple(reference.inputs(5, "own")[1][0].shape))
        except CodeRaised:
            continue
    assert shapes == [(13, 13), (33, 33)][: 1 + grows]
