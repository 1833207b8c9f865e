"""The precision contract in figures: what it admits and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tilewright.judge.check import metric


def _allowed(found: metric.Distance, own: metric.Distance, dtype: torch.dtype) -> bool:
    norm, worst = metric.floors(dtype)
    return (
        found.misplaced == 0
        and found.norm <= max(metric.FACTOR * own.norm, norm)
        and found.worst <= max(metric.FACTOR * own.worst, worst)
    )


def _rounded(tensor: Tensor, bits: int) -> Tensor:
    """fp32 with `bits` bits of significand left."""
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


def test_figures() -> None:
    truth = torch.tensor([3.0, 4.0, 0.0, 0.0], dtype=torch.float64)
    value = torch.tensor([3.0, 4.0, 0.5, 0.0])
    found = metric.distance(value, truth, truth)
    assert found.norm == pytest.approx(0.1)
    assert found.worst == pytest.approx(0.5 / 2.5)  # the typical size is sqrt(25 / 4)
    assert found.worst_at == 2


@pytest.mark.parametrize("inner", [1, 64, 4096])
def test_a_product_is_held_to_its_class(inner: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64, inner), torch.randn(inner, 48)
    truth = a.double() @ b.double()
    own = metric.distance(a @ b, truth, a @ b)
    blocks = (a.reshape(64, -1, max(inner // 8, 1)) * 1.0).transpose(0, 1)
    other_order = sum(blocks[i] @ b.reshape(blocks.shape[0], -1, 48)[i] for i in range(blocks.shape[0]))
    assert isinstance(other_order, Tensor)
    tf32 = _rounded(a, 11) @ _rounded(b, 11)
    assert _allowed(metric.distance(other_order, truth, a @ b), own, torch.float32)
    assert not _allowed(metric.distance(tf32, truth, a @ b), own, torch.float32)


@pytest.mark.parametrize(("dtype", "below"), [(torch.float16, torch.bfloat16), (torch.float32, torch.float16)])
def test_the_class_below_is_refused(dtype: torch.dtype, below: torch.dtype) -> None:
    torch.manual_seed(0)
    truth = torch.rand(20_000, dtype=torch.float64) + 0.5
    own = metric.distance(truth.to(dtype), truth, truth.to(dtype))
    lower = truth.to(below).to(dtype)
    assert _allowed(own, own, dtype)
    assert not _allowed(metric.distance(lower, truth, truth.to(dtype)), own, dtype)


def test_one_wrong_element_among_a_million_is_seen() -> None:
    truth = torch.rand(1_000_000, dtype=torch.float64)
    value = truth.float()
    own = metric.distance(value, truth, value)
    value = value.clone()
    value[77] += 1e-3
    found = metric.distance(value, truth, truth.float())
    assert found.worst_at == 77 and not _allowed(found, own, torch.float32)


def test_non_finite_values_count_by_position() -> None:
    inf, nan = math.inf, math.nan
    truth = torch.tensor([1.0, nan, inf, -inf], dtype=torch.float64)
    assert metric.distance(truth.float(), truth, truth.float()).misplaced == 0
    for wrong in (
        [nan, nan, inf, -inf],
        [1, 1, inf, -inf],
        [1, nan, -inf, -inf],
        [1, nan, inf, nan],
        [inf, nan, inf, -inf],
    ):
        assert metric.distance(torch.tensor(wrong), truth, truth.float()).misplaced == 1


def test_overflow_of_the_reference_is_its_own_right() -> None:
    truth = torch.tensor([1.0, 1e300], dtype=torch.float64)
    reference = truth.float()
    assert metric.distance(reference, truth, reference).misplaced == 0
    assert metric.distance(torch.tensor([1.0, 5.0]), truth, reference).misplaced == 1


def test_integers_are_exact() -> None:
    truth = torch.tensor([1, 2, 3])
    assert metric.distance(truth.clone(), truth, truth).exact
    found = metric.distance(torch.tensor([1, 2, 4]), truth, truth)
    assert found.misplaced == 1 and found.worst_at == 2
    assert metric.floors(torch.int64) == (0.0, 0.0)


def test_all_zero_truth_asks_for_zeros() -> None:
    truth = torch.zeros(4, dtype=torch.float64)
    assert metric.distance(torch.zeros(4), truth, torch.zeros(4)).norm == 0.0
    assert metric.distance(torch.full((4,), 1e-30), truth, torch.zeros(4)).norm == math.inf


def test_a_looser_class_is_the_users_choice() -> None:
    assert metric.floors(torch.float32, "tf32")[0] > 100 * metric.floors(torch.float32)[0]


def test_a_description_names_place_and_values() -> None:
    truth = torch.zeros(2, 3, dtype=torch.float64) + 1
    value = truth.float()
    value[1, 2] = 5
    text = metric.first_difference(value, truth, truth.float())
    assert "[1, 2]" in text and "5" in text


def test_the_typical_size_leaves_out_what_is_not_finite() -> None:
    assert metric.typical(torch.tensor([3.0, float("inf"), 4.0, float("nan")])) == pytest.approx((25 / 2) ** 0.5)
    assert metric.typical(torch.tensor([float("nan")])) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn, torch.complex64])
def test_what_is_finite_is_measured_in_fewer_passes_to_the_same_figures(dtype, monkeypatch):
    monkeypatch.setattr(metric, "_BLOCK", 1000)
    torch.manual_seed(0)
    truth = torch.randn(2503, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    truth[::7] = 0
    truth[1::7] *= 1e-6
    value = (truth * (1 + 1e-3 * torch.randn(2503))).to(dtype)
    for slack in (None,) if dtype.is_complex else (None, 1e-3 * torch.rand(2503, dtype=torch.float64)):
        found, slow = metric.distance(value, truth, value, slack), metric._beside_specials(value, truth, value, slack)
        assert (found.worst_at, found.misplaced, found.finite) == (slow.worst_at, slow.misplaced, slow.finite)
        assert found.norm == pytest.approx(slow.norm, rel=1e-9) and found.worst == slow.worst > 0
    if dtype is torch.float32:
        for place, wrong in ((0, math.nan), (2502, math.inf)):
            bad = value.clone()
            bad[place] = wrong
            assert metric.distance(bad, truth, value).misplaced == 1 and metric.differing_specials(bad, truth)
            assert metric.distance(value, truth, bad) == metric._beside_specials(value, truth, bad, None)
        assert metric.distance(truth.float(), truth.float().double(), value).exact


def test_a_result_of_nothing_but_nan_is_told_once() -> None:
    truth = torch.ones(4, 3, dtype=torch.float64)
    told = metric.unwritten(torch.full((4, 3), torch.nan), truth)
    assert told.startswith("all 12 elements are NaN. The judge fills fresh memory with NaN")
    part = torch.ones(4, 3)
    part[0] = torch.nan
    assert metric.unwritten(part, truth) == "" == metric.unwritten(torch.ones(4, 3), truth)
    assert metric.unwritten(torch.full((4, 3), torch.nan), truth * torch.nan) == ""
    assert metric.unwritten(torch.ones(4, 3, dtype=torch.int64), truth) == ""
