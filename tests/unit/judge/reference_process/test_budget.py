"""The budget of each element: honest roundings stay within it, lower classes and constants do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process.budget import Asked, most_turns
from tilewright.judge.reference_process.ensemble import Ensemble, Question
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.wire.messages import Judged

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return {}

def get_inputs():
    return [torch.rand(2, 4)]

def get_init_inputs():
    return []
"""


def _open(expression: str) -> Reference:
    source = SOURCE.format(expression)
    reference = Reference("/nowhere/p.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=1)
    return reference


def _asked(expression: str, x: Tensor) -> tuple[Asked, tuple[Tensor, ...]]:
    """An ensemble on x, and the module's own results."""
    reference, text = _open(expression), values.encode([x], [])
    own = reference.subject.run(text, [x])
    return Asked(reference, Question(args=text, inputs=[x], seed=3)), own if isinstance(own, tuple) else (own,)


def _judged(expression: str, got: Tensor, x: Tensor, output: int = 0) -> Judged:
    asked, own = _asked(expression, x)
    assert got.shape == own[output].shape
    return asked.judged(output, got=got.to(own[output].dtype), own=own[output])


def _changed(expression: str, x: Tensor, **changes: float) -> Judged:
    """The verdict on the module's own result, with other elements in some places ("at_3": the fourth)."""
    asked, (own, *_) = _asked(expression, x)
    got = own.clone()
    for place, value in changes.items():
        got.view(-1)[int(place.removeprefix("at_"))] = value
    assert not torch.equal(got, own)
    return asked.judged(0, got=got, own=own)


def _in_tf32(x: Tensor) -> Tensor:
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _sequential(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(len(a), b.shape[1])
    for k in range(len(b)):
        total += a[:, k, None] * b[k]
    return total


# ---- indices

TIED = torch.tensor([[1.0, 5.0, 5.0, 2.0], [7.0, 0.0, 7.0, 7.0]])


@pytest.mark.parametrize(
    ("expression", "tied", "short"),
    [
        ("x.argmax(1)", [2, 3], [0, 3]), ("x.argmax(1).int()", [2, 2], [3, 3]),
        ("x.max(1).indices.unsqueeze(0)", [[2, 2]], [[2, 1]]), ("(-x).argmin(-1)", [1, 0], [1, 1]),
        ("x.argmax()", 7, 1), ("x.argmax(1) + 4", [6, 7], [4, 7]),
    ],
)  # fmt: skip
def test_any_index_that_attains_the_maximum(expression: str, tied: list[int], short: list[int]) -> None:
    assert _judged(expression, torch.tensor(tied), TIED).right
    assert _judged(expression, torch.tensor(short), TIED).wrong


def test_indices_out_of_range_and_chosen_twice_are_wrong() -> None:
    for got in ([4, 0], [-1, 0]):
        assert _judged("x.argmax(1)", torch.tensor(got), TIED).wrong
    assert _judged("x.topk(2, 1)", torch.tensor([[2, 1], [3, 0]]), TIED, output=1).right
    assert _judged("x.topk(2, 1)", torch.tensor([[2, 2], [3, 0]]), TIED, output=1).wrong
    assert _judged("x.sort(1)", torch.tensor([[0, 3, 1, 1], [1, 0, 2, 3]]), TIED, output=1).wrong


def test_a_stable_sort_promises_an_order() -> None:
    sort = "tuple(x.sort(dim=1, stable=True))"
    assert _judged(sort, torch.tensor([[0, 3, 2, 1], [1, 0, 2, 3]]), TIED, output=1).wrong


def test_a_pool_may_choose_another_of_its_windows_largest() -> None:
    """And nothing outside of its window, though it be as large."""
    x = torch.tensor([[[1.0, 5.0, 5.0, 5.0], [5.0, 0.0, 2.0, 5.0], [0.0, 0.0, 5.0, 0.0]]])
    pool = "F.max_pool2d(x, 2, 1, return_indices=True)"
    for chosen, right in (([[[1, 1, 2], [4, 10, 7]]], True), ([[[4, 2, 3], [4, 10, 10]]], True),
                          ([[[1, 3, 2], [4, 10, 7]]], False), ([[[1, 1, 2], [4, 10, 2]]], False),
                          ([[[0, 1, 2], [4, 10, 7]]], False)):  # fmt: skip
        assert _judged(pool, torch.tensor(chosen), x, output=1).right == right
    halves = "F.adaptive_max_pool2d(x, (3, 2), return_indices=True)"
    assert _judged(halves, torch.tensor([[[1, 3], [4, 7], [9, 10]]]), x, output=1).right
    assert _judged(halves, torch.tensor([[[1, 3], [4, 7], [11, 10]]]), x, output=1).wrong
    dilated = "F.max_pool2d(x, 2, 2, 1, 2, return_indices=True)"
    assert _judged(dilated, torch.tensor([[[5, 7], [5, 7]]]), x, output=1).right
    assert _judged(dilated, torch.tensor([[[4, 7], [5, 7]]]), x, output=1).wrong


def test_what_was_computed_may_tie_within_rounding_and_what_was_given_may_not() -> None:
    x = torch.tensor([[1.0, 1.0 + 2**-23, 0.0, 0.0]])
    assert _judged("(x * 3.1).exp().argmax(1)", torch.tensor([0]), x).right
    assert _judged("(x * 3.1).exp().argmax(1)", torch.tensor([2]), x).wrong
    assert _judged("x.argmax(1)", torch.tensor([0]), x).wrong


# ---- whole numbers

QUANTISED = torch.tensor([[1.0, 2.5 / 1.1, -3.5 / 1.1, 0.4], [126.5 / 1.1, -126.4, 300.0, 7.25]])


@pytest.mark.parametrize(
    ("expression", "near", "far"),
    [
        ("torch.round(x * 1.1).clamp(-127, 127).to(torch.int8)", {1: (2, 3), 2: (-3, -4), 4: (126, 127)},
         {0: 2, 3: 1, 6: 126, 7: 9}),
        ("(x * 1.1).clamp(-127, 127).round_().char()", {1: (2, 3), 2: (-3, -4)}, {1: 1, 2: -5}),
        ("(x * 4.4).to(torch.int16)", {1: (9, 10), 2: (-13, -14)}, {2: -15, 7: 32}),
    ],
    ids=["round", "in place", "towards zero"],
)  # fmt: skip
def test_next_to_a_tie_both_neighbours_are_right(
    expression: str, near: dict[int, tuple[int, ...]], far: dict[int, int]
) -> None:  # fmt: skip
    asked, (own,) = _asked(expression, QUANTISED)
    changes = [(at, value, True) for at, both in near.items() for value in both]
    for at, value, right in (*changes, *((k, v, False) for k, v in far.items())):
        got = own.clone()
        got.view(-1)[at] = value
        assert asked.judged(0, got=got, own=own).right == right, (at, value)


def test_what_is_exact_does_not_tie() -> None:
    """Halves that are given, sums of whole numbers, and what an exact product makes of them."""
    halves = torch.tensor([[0.5, 1.5, 2.5, 3.5]])
    assert not _changed("torch.round(x)", halves, at_0=1.0).right
    assert not _changed("torch.round(x * 0.5 + 0.25)", halves, at_0=1.0).right
    whole = torch.arange(16.0).view(4, 4) - 7
    assert not _changed("x @ x.flip(0) > -10", whole, at_0=0.0).right
    assert not _changed("x.sum(1) > -22", whole, at_0=1.0).right


SCALED = "(lambda y: torch.round(y / (y.abs().amax(-1, True) / 127)))(x / x.pow(2).mean(-1, True).sqrt())"


def _with_ties(seed: int) -> Tensor:
    """Half of the largest is 63.5 of 127 steps, whatever the scale, and the errors of the scale are the whole row's."""
    return torch.randint(-4, 5, (128, 1024), generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("seed", range(2))
def test_ties_of_a_row_go_either_way_together(seed: int) -> None:
    x = _with_ties(seed)
    asked, (own,) = _asked(f"{SCALED}.to(torch.int8)", x)
    for tie in (63, 64):
        assert asked.judged(0, got=torch.where(x.abs() == 2, x.sign() * tie, own).char(), own=own).right, tie
    for tie in (62, 65):
        found = asked.judged(0, got=torch.where(x.abs() == 2, x.sign() * tie, own).char(), own=own)
        assert found.wrong == int((x.abs() == 2).sum()), tie
    assert asked.judged(0, got=torch.where(x == 1, own + 1, own).char(), own=own).wrong


def test_ties_of_a_row_inside_floats() -> None:
    x = _with_ties(0)
    asked, (own,) = _asked(f"{SCALED} * 0.5", x)
    for tie, right in ((31.5, True), (32.0, True), (31.0, False)):
        assert asked.judged(0, got=torch.where(x.abs() == 2, x.sign() * tie, own), own=own).right == right, tie


# ---- floats of eight bits

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_eight_bits_are_the_nearest_but_for_ties(dtype: torch.dtype) -> None:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * 30
    x[0, 0] = 10.5 / 1.1 if dtype == torch.float8_e4m3fn else 9.0 / 1.1
    asked, (own,) = _asked(f"(x * 1.1).to({dtype})", x)
    assert asked.judged(0, got=own, own=own).right
    assert asked.judged(0, got=(x / (1 / 1.1)).to(dtype), own=own).right
    assert asked.judged(0, got=(x * 1.1).bfloat16().to(dtype), own=own).wrong
    assert asked.judged(0, got=(x * 1.111).to(dtype), own=own).wrong
    for value, right in ((10.0, True), (11.0, True), (9.0, False)) if dtype == torch.float8_e4m3fn else ():
        got = own.float()
        got[0, 0] = value
        assert asked.judged(0, got=got.to(dtype), own=own).right == right, value


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_eight_bits_beside_what_is_no_number(dtype: torch.dtype) -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    x[1, 2], x[3, 4], x[5, 6] = torch.nan, torch.inf, -torch.inf
    asked, (own,) = _asked(f"(x * 1.1).to({dtype})", x)
    assert asked.judged(0, got=own, own=own).right
    other = own.float()
    other[1, 2] = -other[1, 2]
    assert asked.judged(0, got=other.to(dtype), own=own).right
    for place, value in (((0, 0), torch.nan), ((1, 2), 1.0)):
        other = own.float()
        other[place] = value
        assert asked.judged(0, got=other.to(dtype), own=own).wrong == 1


# ---- comparisons

NEAR, BELOW, TIE, FAR, NO_NUMBER, INFINITE, TYPICAL = range(7)


def _compared() -> Tensor:
    """400 values of which all but some of the first lie away from nought."""
    torch.manual_seed(0)
    x = torch.rand(20, 20).add(0.1).mul(torch.randn(20, 20).sign())
    x[0, :6] = torch.tensor([1e-8, -1e-8, 0.0, 1e-3, torch.nan, torch.inf])
    return x


@pytest.mark.parametrize(
    "expression",
    [
        "(x * 1.1 + 1) - 1 > 0", "0 > (x * 1.1 + 1) - 1", "~((x * 1.1 + 1) - 1 > 0)", "x * 1.1 + 1 > 1",
        "torch.gt((x * 1.1 + 1), 1, out=torch.empty(20, 20, dtype=torch.bool))",
        "((x * 1.1 + 1) - 1).relu() > 0", "(((x * 1.1 + 1) - 1 > 0) & (x.flip(1) < 9)).view(5, 80)",
        "((x * 1.1 + 1) - 1 > 0).float()",
    ],
)  # fmt: skip
def test_either_answer_where_what_is_compared_is_equal_but_for_rounding(expression: str) -> None:
    asked, (own,) = _asked(expression, _compared())
    for places, right in (((NEAR,), True), ((BELOW,), True), ((NEAR, FAR), False), ((TYPICAL,), False)):
        got = own.clone()
        for place in places:
            got.view(-1)[place] = 1 - got.view(-1)[place].to(torch.int8)
        assert asked.judged(0, got=got, own=own).right == right, places


@pytest.mark.parametrize("expression", ["x > 0", "x.relu() > 0", "x * 1.1 > 0", "x > x.flip(1)"])
def test_what_no_rounding_turns_is_compared_exactly(expression: str) -> None:
    asked, (own,) = _asked(expression, _compared())
    for place in (NEAR, BELOW, TIE, NO_NUMBER, INFINITE):
        got = own.clone()
        got.view(-1)[place] = ~got.view(-1)[place]
        assert asked.judged(0, got=got, own=own).wrong


def test_what_fills_a_mask_is_no_measure_of_the_rest() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    masked = "(x @ x.T).masked_fill(torch.ones(64, 64).tril(-1).T.bool(), -1e9) > 0"
    asked, (own,) = _asked(masked, x)
    assert asked.judged(0, got=torch.zeros_like(own), own=own).wrong
    assert asked.judged(0, got=_sequential(x, x.T).tril() > 0, own=own).right


# ---- real numbers

SMOOTH = (
    "x @ x.T", "x.softmax(-1)", "F.layer_norm(x + 100, (256,))", "F.gelu(x @ x.T / 16)", "(x @ x.T).logsumexp(-1)",
    "x.cumsum(-1)", "torch.cat([F.layer_norm(x + 1e4, (256,)), x @ x.T], 1)",
)  # fmt: skip


@pytest.mark.parametrize("expression", SMOOTH)
def test_another_order_is_within_it_and_a_lower_class_is_not(expression: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(48, 256)
    asked, (own,) = _asked(expression, x)
    other = eval(expression, {"torch": torch, "F": torch.nn.functional, "x": x.clone()})
    if "x @ x.T" in expression:
        names = {"torch": torch, "F": torch.nn.functional, "x": x, "h": _sequential(x, x.T)}
        other = eval(expression.replace("x @ x.T", "h"), names)
    assert asked.judged(0, got=other, own=own).share < 0.8
    lower = eval(expression, {"torch": torch, "F": torch.nn.functional, "x": _in_tf32(x)})
    assert asked.judged(0, got=lower, own=own).share > 2


def test_one_wrong_element_among_many() -> None:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    asked, (own,) = _asked("x @ x.T", x)
    got = own.clone()
    got[3, 5] += 2e-3
    assert asked.judged(0, got=own, own=own).right and not asked.judged(0, got=got, own=own).right


def test_a_step_inside_floats_takes_either_value_and_none_elsewhere() -> None:
    torch.manual_seed(0)
    x = torch.rand(32, 64) * 10
    x[0, 0] = 2.5 / 1.1
    asked, (own,) = _asked("torch.round(x * 1.1) * 0.3", x)
    for value, right in ((0.6, True), (0.9, True), (1.2, False), (0.3, False)):
        got = own.clone()
        got[0, 0] = value
        assert asked.judged(0, got=got, own=own).right == right, value
    got = own.clone()
    got[5, 5] += 0.3
    assert not asked.judged(0, got=got, own=own).right


def test_a_number_for_what_is_masked_as_a_whole_and_none_for_a_number() -> None:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    masked = "x.masked_fill(torch.ones(8, 8).tril(-1).logical_not(), float('-inf')).softmax(-1) @ x"
    asked, (own,) = _asked(masked, x)
    assert bool(own[0].isnan().all()) and asked.judged(0, got=own.nan_to_num(0.0), own=own).right
    assert not asked.judged(0, got=own.nan_to_num(1.0), own=own).right
    assert asked.judged(0, got=torch.full_like(own, torch.nan), own=own).wrong == 56
    logs, (own,) = _asked("x.log()", x)
    assert logs.judged(0, got=own.nan_to_num(0.0), own=own).wrong


def test_an_infinity_behind_a_mask_may_come_through_as_nan() -> None:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    x[2, 5] = torch.inf
    masked = "x.masked_fill(torch.ones(8, 8).tril().logical_not(), float('-inf')).softmax(-1)"
    asked, (own,) = _asked(masked, x)
    added = x + torch.zeros(8, 8).masked_fill(torch.ones(8, 8).tril().logical_not(), -torch.inf)
    assert bool(torch.isfinite(own).all()) and bool(added.softmax(-1)[2].isnan().all())
    assert asked.judged(0, got=added.softmax(-1), own=own).right
    assert asked.judged(0, got=torch.full_like(own, torch.nan), own=own).wrong == 56


# ---- the ensemble


def test_the_same_question_gets_the_same_answer() -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    before = torch.random.get_rng_state()
    first, second = (_judged("torch.round(x @ x.T * 3)", _sequential(x, x.T).mul(3).round(), x) for _ in range(2))
    torch.random.set_rng_state(before)
    assert first == second


def test_what_roundings_may_turn() -> None:
    x = torch.tensor([[0.1, 0.5 + 2**-24, 0.5, 0.9]])
    reference, text = _open("(x + 1e-3) - 1e-3 > 0.5"), values.encode([x], [])
    budget = Ensemble(reference, Question(args=text, inputs=[x], seed=1)).budget()
    assert budget.open_to(0).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize(
    ("runs", "least", "most"), [([0] * 9, 5, 20), ([100] * 9, 230, 350), ([10, 300] * 5, 600, 4000)]
)
def test_how_many_may_turn(runs: list[int], least: int, most: int) -> None:
    assert least <= most_turns(runs) <= most


# ---- norms


def _merged_from_the_end(x: Tensor) -> Tensor:
    """A layer norm whose means are merged of the last element and the mean of all others (Chan et al.)."""
    last, rest, count = x[:, -1:], x[:, :-1].mean(1, keepdim=True), x.shape[1]
    off = x - (last + (rest - last) * ((count - 1) / count))
    return off * torch.rsqrt(off.square().mean(1, keepdim=True) + 1e-5)


@pytest.mark.parametrize(
    "expression",
    ["F.layer_norm(x, (257,))", "F.group_norm(x[:, None], 1)[:, 0]", "F.batch_norm(x.T, None, None, training=True).T"],
)
def test_means_that_are_merged_of_partial_ones(expression: str) -> None:
    """What an element that is far larger than all others rounds to is many last bits of their mean."""
    x = torch.randn(2, 257, generator=torch.Generator().manual_seed(1)) * 0.01
    x[:, 0], x[:, -1] = 37.123, torch.tensor([171.3, 190.7])
    verdict = _judged(expression, _merged_from_the_end(x), x)
    assert verdict.right, verdict.why
    assert not _judged(expression, _merged_from_the_end(_in_tf32(x)), x).right
