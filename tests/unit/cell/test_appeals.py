"""Second looks: which other indices are right, and what a module amplifies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilewright.cell import appeals, values
from tilewright.cell.reference import Reference
from tilewright.cell.subject import Subject
from tilewright.cell.wire import Attained
from tilewright.stages.check import metric

TIED = torch.tensor([[1.0, 5.0, 5.0, 2.0], [7.0, 0.0, 7.0, 7.0]])
HEAD = """
import torch
from torch import nn

def get_inputs():
    return [torch.rand(2, 4)]

def get_init_inputs():
    return []

class Model(nn.Module):
    def forward(self, x):
        return """


WEIGHTS = """    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([1000.0])), nn.Parameter(torch.tensor([999.9]))
        self.bias = nn.Parameter(torch.tensor([0.0, 0.0, 0.0, -2.2]))

"""


def _open(expression: str, weights: str = "") -> Reference:
    head = HEAD.replace("    def forward", weights + "    def forward")
    reference = Reference("/nowhere/p.py", head + expression, ["{}"], subject=Subject("cpu"), compiled=False)
    reference.construct(0, seed=1)
    return reference


def _attained(expression: str, got: Tensor, x: Tensor = TIED, output: int = 0) -> Attained:
    reference = _open(expression)
    text = values.encode([x], [])
    result = reference._subject.run(text, [x])
    own = result[output] if isinstance(result, tuple) else result
    assert got.shape == own.shape
    return appeals.attained(reference, text, [x], output=output, got=got, own=own, seed=1)


@pytest.mark.parametrize(
    ("expression", "tied", "short"),
    [
        ("x.argmax(1)", [2, 3], [0, 3]),
        ("x.argmax(1).int()", [2, 2], [3, 3]),
        ("(x.max(1).indices.unsqueeze(0) if True else 0)", [[2, 2]], [[2, 1]]),
        ("(-x).argmin(-1)", [1, 0], [1, 1]),
        ("x.argmax()", 7, 1),
    ],
)
def test_any_index_that_attains_the_maximum(expression: str, tied: list[int], short: list[int]) -> None:
    right, wrong = _attained(expression, torch.tensor(tied)), _attained(expression, torch.tensor(short))
    assert right == Attained(known=True, valid=True, exact=True, shortfall=0.0, own_shortfall=0.0)
    assert wrong.valid and wrong.shortfall > 0.25


def test_indices_out_of_range_and_chosen_twice_are_not_valid() -> None:
    assert not _attained("x.argmax(1)", torch.tensor([4, 0])).valid
    assert not _attained("x.argmax(1)", torch.tensor([-1, 0])).valid
    assert _attained("x.topk(2, 1)", torch.tensor([[2, 1], [3, 0]]), output=1).shortfall == 0.0
    assert not _attained("x.topk(2, 1)", torch.tensor([[2, 2], [3, 0]]), output=1).valid
    assert not _attained("x.sort(1)", torch.tensor([[0, 3, 1, 1], [1, 0, 2, 3]]), output=1).valid


def test_a_pool_may_choose_another_of_its_windows_largest() -> None:
    """And nothing outside of its window, though it be as large."""
    x = torch.tensor([[[1.0, 5.0, 5.0, 5.0], [5.0, 0.0, 2.0, 5.0], [0.0, 0.0, 5.0, 0.0]]])
    pool = "nn.functional.max_pool2d(x, 2, 1, return_indices=True)"
    first = [[[1, 1, 2], [4, 10, 7]]]
    for chosen, valid in (([[[4, 2, 3], [4, 10, 10]]], True), ([[[1, 3, 2], [4, 10, 7]]], False),
                          ([[[1, 1, 2], [4, 10, 2]]], False)):  # fmt: skip
        found = _attained(pool, torch.tensor(chosen), x, output=1)
        assert found.known and found.valid == valid and found.shortfall == 0.0
    assert _attained(pool, torch.tensor(first), x, output=1).valid
    short = _attained(pool, torch.tensor([[[0, 1, 2], [4, 10, 7]]]), x, output=1)
    assert short.valid and short.shortfall > 0.5
    halves = "nn.functional.adaptive_max_pool2d(x, (3, 2), return_indices=True)"
    assert not _attained(halves, torch.tensor([[[1, 3], [4, 7], [11, 10]]]), x, output=1).valid
    assert _attained(halves, torch.tensor([[[1, 3], [4, 7], [9, 10]]]), x, output=1).shortfall == 0.0
    dilated = "nn.functional.max_pool2d(x, 2, 2, 1, 2, return_indices=True)"
    assert _attained(dilated, torch.tensor([[[5, 7], [5, 7]]]), x, output=1).valid
    assert not _attained(dilated, torch.tensor([[[4, 7], [5, 7]]]), x, output=1).valid


QUANTISED = torch.tensor([[1.0, 2.5, -3.5000001, 0.4], [126.5, -126.4, 300.0, 7.25]])


@pytest.mark.parametrize(
    ("expression", "near", "far"),
    [
        ("torch.round(x).clamp(-127, 127).to(torch.int8)", {1: 3, 2: -3, 4: 127}, {0: 2, 3: 1, 6: 126, 7: 8}),
        ("x.clamp(-127, 127).round_().char()", {1: 3, 2: -3}, {1: 1, 2: -5}),
        ("((x * 2).floor() / 1).clamp(-100, 100).to(torch.int32)", {0: 1, 1: 4}, {0: 3, 3: 1}),
        ("(x * 2).to(torch.int16)", {0: 1, 1: 4}, {2: -8, 7: 13}),
        ("(torch.round(x) + torch.tensor([[3.0], [-5.0]])).clamp(-50, 50).to(torch.int8)", {1: 6, 2: 0}, {0: 5, 7: 3}),
    ],
    ids=["round", "in place", "floor", "towards zero", "zero point"],
)
def test_next_to_a_tie_both_neighbours_are_right(expression: str, near: dict[int, int], far: dict[int, int]) -> None:
    own = _open(expression)._subject.run(values.encode([QUANTISED], []), [QUANTISED])
    for changes, right in (*(({k: v}, True) for k, v in near.items()), *(({k: v}, False) for k, v in far.items())):
        got = own.clone()
        for place, value in changes.items():
            got.view(-1)[place] = value
        assert not torch.equal(got, own)
        found = _attained(expression, got, QUANTISED)
        assert found.known and found.valid and not found.exact and found.own_shortfall < 1e-6
        assert (found.shortfall < 1e-6) == right, changes


def test_what_was_computed_may_tie_within_rounding() -> None:
    x = torch.tensor([[1.0, 1.0 + 2**-23, 0.0, 0.0]])
    near = _attained("(x * 3).exp().argmax(1)", torch.tensor([0]), x)
    assert near.known and not near.exact and 0 < near.shortfall < 1e-6


def test_other_integers_are_no_indices() -> None:
    assert not _attained("(x > 3).sum(1)", torch.tensor([1, 1])).known
    assert not _attained("x.sort(dim=1, stable=True)", torch.tensor([[0, 3, 2, 1], [1, 0, 2, 3]]), output=1).known


NEAR, BELOW, TIE, FAR, NO_NUMBER, INFINITE, TYPICAL = range(7)


def _compared() -> Tensor:
    """400 values of which all but some of the first lie away from nought."""
    torch.manual_seed(0)
    x = torch.rand(20, 20).add(0.1).mul(torch.randn(20, 20).sign())
    x[0, :6] = torch.tensor([1e-7, -1e-7, 0.0, 1e-3, torch.nan, torch.inf])
    return x


def _flipped(expression: str, *places: int, x: Tensor | None = None) -> Attained:
    """What is said of the reference's own answers, of which those in these places are turned round."""
    x = _compared() if x is None else x
    result = _open(expression)._subject.run(values.encode([x], []), [x])
    got = result.clone()
    for place in places:
        got.view(-1)[place] = ~got.view(-1)[place]
    return _attained(expression, got, x)


@pytest.mark.parametrize(
    "expression",
    [
        "x * 1.1 > 0", "x * 1.1 >= 0", "0 > x * 1.1", "(x * 1.1).le(0)", "~(x * 1.1 > 0)",
        "torch.logical_not(x * 1.1 > 0)", "torch.greater(x * 1.1, torch.zeros(20, 1))", "x * 1.1 > x * -1.3",
        "(x * 1.1).gt_(0).bool()", "torch.gt(x * 1.1, 0, out=torch.empty(20, 20, dtype=torch.bool))",
        "(x * 1.1 > 0).view(5, 80)", "(x * 1.1).relu() > 0", "(x * 1.1).relu_() > 0", "(x * 1.1).clamp(min=0) <= 0",
        "((y := x * 1.1) > 0, y.mul_(1e9))[0]",
    ],
)  # fmt: skip
def test_either_answer_where_what_is_compared_is_equal_but_for_rounding(expression: str) -> None:
    near = _flipped(expression, NEAR, BELOW)
    assert near.known and near.valid and not near.exact and near.own_shortfall == 0.0
    assert 0 < near.shortfall < 1e-6
    assert not _flipped(expression, NEAR, TIE).valid, "no rounding moves what is equal"
    assert not _flipped(expression, NO_NUMBER).valid and not _flipped(expression, INFINITE).valid
    assert _flipped(expression, NEAR, FAR).shortfall > 1e-4
    assert _flipped(expression, TYPICAL).shortfall > 0.1


@pytest.mark.parametrize(
    "expression",
    [
        "(x * 1.1 > 0) & (x.flip(0) * 1.1 > 0)", "x * 1.1 != 0", "x * 1.1 == 0", "(x * 1.1 > 0).T.contiguous()",
        "(x.nan_to_num(posinf=1.0) * 9).int() > 0",
    ],
)  # fmt: skip
def test_what_else_gives_booleans_is_known_to_nobody(expression: str) -> None:
    assert not _flipped(expression, NEAR).known


@pytest.mark.parametrize("expression", ["x > 0", "x.relu() > 0", "x > x.flip(1)", "(x * 1.1 > 0, x > 0)[0]"])
def test_what_is_given_is_compared_exactly(expression: str) -> None:
    """And so is what such a comparison gives as well."""
    found = _flipped(expression, NEAR, x=torch.nan_to_num(_compared(), posinf=1.0))
    assert found.known and found.exact and found.shortfall > 0.0


def test_the_sign_of_a_product_tells_its_class() -> None:
    """Another order of summation is wrong next to nought alone, TF32's operands are wrong farther off."""
    torch.manual_seed(0)
    x = torch.randn(400, 512)
    in_tf32 = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    halves = x[:, ::2] @ x[:, ::2].T + x[:, 1::2] @ x[:, 1::2].T
    floor = metric.floors(torch.float32, length=512)[1]
    for product, most in ((halves, floor), (in_tf32 @ in_tf32.T, 0.01)):
        found = _attained("x @ x.T > 0", product > 0, x)
        assert found.known and found.valid and not found.exact and 2 * found.own_shortfall <= floor
        assert (found.shortfall <= floor) == (most == floor) and found.shortfall < most


def test_the_strictest_of_comparisons_that_fit() -> None:
    """At the smallest value there are two that give False everywhere: it lies near the bound of one of them alone."""
    x = torch.rand(20, 20) + 2
    x[0, NEAR] = 1.0 + 2**-22
    one, both = _flipped("x * 1.1 < 1.1", NEAR, x=x), _flipped("(x * 1.1 < 1.1, x * 1.1 < 1)[0]", NEAR, x=x)
    assert one.valid and one.shortfall < 1e-6
    assert both.known and both.shortfall > 0.01


def test_the_references_own_roundings_count_as_far_as_roundings_go() -> None:
    x = torch.ones(20, 20).bfloat16()
    x[0, NEAR], x[0, FAR] = 1.5, 1.4921875
    found = _flipped("x + 2**-9 > 1.5", FAR, x=x)  # in bf16 1.5 + 2**-9 is 1.5
    assert found.valid and not found.exact
    assert found.own_shortfall == pytest.approx(2**-9 / (1.5 + 2**-9))
    assert found.shortfall == pytest.approx(3 * 2**-9 / 1.5)
    x = torch.rand(20, 20).half() + 1
    x[0, NEAR] = 60000.0
    found = _flipped("x * 1.1 - x > 7000", TYPICAL, x=x)  # in fp16 60000 * 1.1 is infinite
    assert found.own_shortfall == 2**-6 and found.shortfall > 0.9


def test_what_fills_a_mask_is_no_measure_of_the_rest() -> None:
    """Beside -1e9 all others are next to nought, and one in 128 may be wrong."""
    filled = "(x.nan_to_num(posinf=1.0) * 1.1).masked_fill(torch.ones(20, 20).tril().bool(), -1e9) > 0"
    assert _flipped(filled, BELOW).valid
    assert not _flipped(filled, TYPICAL).valid


@pytest.mark.parametrize(
    ("expression", "least", "most"),
    [("x * 3", 0.9, 1.1), ("x - 1000", 1700, 1800), ("x.sum(1)", 0.0, 1.1), ("torch.round(x / 1e4)", 0.0, 0.0)],
)
def test_amplification(expression: str, least: float, most: float) -> None:
    x = torch.rand(64, 100) + 1000
    reference = _open(expression)
    text = values.encode([x], [])
    truths = reference.truth(text, [x], 1)
    found = appeals.amplified(reference, text, [x], truths, seed=3)
    assert least <= found.norm[0] <= most


@pytest.mark.parametrize(
    ("expression", "least", "most"),
    [
        ("nn.functional.gelu(x * 1e-8 + self.bias)", 1.5, 20.0),  # one number, next to which all else is nought
        ("x * (self.a - self.b)", 64.0, 64.0),  # exact in torch: a lower class must not pass for it
        ("x * self.b", 0.9, 5.0),
    ],
)
def test_amplification_of_what_parameters_hold(expression: str, least: float, most: float) -> None:
    x = torch.rand(64, 4)
    reference = _open(expression, WEIGHTS)
    text = values.encode([x], [])
    truths = reference.truth(text, [x], 1)
    for seed in range(5):
        found = appeals.amplified(reference, text, [x], truths, seed=seed)
        assert least <= found.norm[0] <= most
    assert torch.equal(reference.truth(text, [x], 1)[0], truths[0])  # nothing stays moved
