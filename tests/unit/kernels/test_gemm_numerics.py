"""The fp32 schemes of matrix products, in a model of tensor cores that truncate: as accurate as fp32, and as robust."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from fakes import gemm_model as model
from tilewright.kernels.cuda.gemm.fp32 import bounds
from tilewright.realise.gemm import points as product_points

pytestmark = pytest.mark.each(3)

SIDE = 12
CONTRACT = 8 * 2.0**-23  # docs/precision.md: the floor of fp32 outputs, in the norm


def spread(rows, columns, reach):
    return torch.randn(rows, columns) * torch.exp2(torch.randint(-reach, reach + 1, (rows, columns)).float())


def opposite(k, reach):
    """Exponents that rise along K in A and fall in B: each product of about one size."""
    steps = torch.linspace(-reach, reach, k).round()
    return torch.randn(SIDE, k) * torch.exp2(steps), torch.randn(k, SIDE) * torch.exp2(-steps)[:, None]


def one_sided(rows, columns):
    return torch.rand(rows, columns).add(1).mul(1024).floor().add(0.445).div(1024)


FAMILIES = {
    "normal": lambda k: (torch.randn(SIDE, k), torch.randn(k, SIDE)),
    "uniform": lambda k: (torch.rand(SIDE, k), torch.rand(k, SIDE)),
    "one_sided": lambda k: (one_sided(SIDE, k), one_sided(k, SIDE)),
    "wide": lambda k: (spread(SIDE, k, 12), spread(k, SIDE, 12)),
    "wider": lambda k: (spread(SIDE, k, 30), spread(k, SIDE, 30)),
    "subnormal rows": lambda k: (torch.randn(SIDE, k) * 2.0**-140, torch.randn(k, SIDE) * 2.0**60),
    "at the ends": lambda k: (torch.randn(SIDE, k) * 2.0**110, torch.randn(k, SIDE) * 2.0**-140),
    "opposite": lambda k: opposite(k, 8),
}


@pytest.fixture(autouse=True)
def calm():
    """The same numbers each time; and one thread, since thousands of tiny operations gain nothing from more."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_at_most_twice_the_error_of_fp32(family):
    """In the norm; below the contract's floor for short sums, where one rounding is all that fp32 does."""
    for k in (7, 704):
        a, b = FAMILIES[family](k)
        truth = a.double() @ b.double()
        own = model.norm_error(model.fp32(a, b), truth)
        for scheme in ("shared", "fp16x3"):
            error = model.norm_error(model.product(a, b, scheme=scheme), truth)
            assert error <= (2 * own if k > 100 else CONTRACT), f"{scheme}, K = {k}: {error:.2g}, fp32 {own:.2g}"
            error = model.norm_error(model.streamed(a, b, scheme=scheme), truth)
            assert error <= (2 * own if k > 100 else CONTRACT), f"streamed {scheme}, K = {k}: {error:.2g}"


@pytest.mark.parametrize("family", [*FAMILIES, "opposite ends"])
def test_three_planes_are_as_accurate_as_fp32_whatever_the_exponents(family):
    """Also where elements lie 2^60 apart and their partners make all of them count: there pairs of fp16 fail."""
    for k in (7, 704):
        a, b = opposite(k, 30) if family == "opposite ends" else FAMILIES[family](k)
        truth = a.double() @ b.double()
        own = model.norm_error(model.fp32(a, b), truth)
        error = model.norm_error(model.wide(a, b), truth)
        assert error <= (2 * own if k > 100 else CONTRACT), f"K = {k}: {error:.2g}, fp32 {own:.2g}"
        if family == "opposite ends" and k > 100:
            assert model.norm_error(model.product(a, b, scheme="fp16x3"), truth) > 100 * own


@pytest.mark.parametrize(("reach", "least", "most"), [(8, 1e-7, 2e-7), (12, 1e-7, 2e-7), (16, 4e-7, 2e-6),
                                                      (18, 5e-6, 4e-5), (20, 1e-4, 8e-4)])  # fmt: skip
def test_exponents_that_oppose_one_another_are_what_three_planes_are_for(reach, least, most):
    """The table of docs/precision.md: pairs of fp16 lose it from 2^16 on."""
    a, b = opposite(1000, reach)
    truth = a.double() @ b.double()
    assert least <= model.norm_error(model.product(a, b, scheme="fp16x3", interval=32), truth) <= most
    assert model.norm_error(model.wide(a, b, interval=32), truth) <= model.norm_error(model.fp32(a, b), truth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bits_are_as_far_off_as_the_tests_on_a_gpu_allow(dtype):
    """A bound of 1e-6 refused K of 1000 in fp16, and of 4096 in both (H200, 2026-11-23)."""
    for k in (1000, 4096):
        a, b = (torch.randn(*s).to(dtype).double() for s in ((SIDE, k), (k, SIDE)))
        error = model.norm_error(model.halves(a, b), a @ b)
        assert 0.25 < error / (model.UNPROMOTED * k) < 0.75


def test_a_gram_matrix_of_eight_bits_is_as_far_off_as_sums_of_one_sign():
    """Its diagonal is its norm."""
    a = torch.randn(1024, 8).to(torch.float8_e4m3fn).double()
    error = model.norm_error(model.eighths(a.t(), a), a.t() @ a)
    assert model.EIGHTHS < error < model.EIGHTHS_OF_ONE_SIGN


@pytest.mark.parametrize(("one_sided", "most"), [(False, 2.0**-12), (True, 2.0**-10)])
def test_sums_of_eight_bits_are_promoted_as_long_as_14_bits_hold_them(one_sided, most):
    a, b = (torch.randn(*s).to(torch.float8_e4m3fn).double() for s in ((SIDE, 1024), (1024, SIDE)))
    a, b = (a.abs(), b.abs()) if one_sided else (a, b)
    truth = a @ b
    error = model.norm_error(model.eighths(a, b), truth)
    alone = model.norm_error(model.eighths(a, b, promote=1024), truth)
    assert most / 4 < error < most and alone > 1.5 * error


def test_the_model_gives_what_was_measured():
    """On an H200, 2026-11-20 (docs/measured.md), relative in the norm: K = 8192, uniform, by K between promotions."""
    a, b = torch.rand(8, 8192), torch.rand(8192, 8)
    truth = a.double() @ b.double()
    for promote, measured in ((0, 4.8e-5), (64, 2.4e-7), (128, 4.7e-7)):
        error = model.norm_error(model.product(a, b, promote=promote), truth)
        assert error == pytest.approx(measured, rel=0.1)


def test_only_a_scaled_residual_holds_what_a_row_hides():
    """Exponents that oppose one another over 2^-12 .. 2^12: 24 binades under the largest of its row an element's fp16
    residual is subnormal, and its partner makes it count."""
    a, b = opposite(960, 12)
    truth = a.double() @ b.double()
    own = model.norm_error(model.fp32(a, b), truth)
    assert model.norm_error(model.product(a, b, scheme="fp16x3"), truth) <= 2 * own
    assert model.norm_error(model.product(a, b, scheme="shared"), truth) > 4 * own
    assert model.worst_error(model.product(a, b, scheme="shared"), a, b) < 2.0**-36, (
        "beside its row and column, nothing"
    )


@pytest.mark.parametrize("reach", [12, 40, 100])
def test_exponents_of_their_own_for_each_64_of_k(reach):
    """Blocks that rise, fall or jump by any power: the sums' exponent follows."""
    k = 640
    steps = torch.linspace(-reach, reach, k // 64).round().repeat_interleave(64)
    for exponents in (steps, -steps, steps.abs(), torch.where(steps > 0, steps, -110.0)):
        a, b = torch.randn(SIDE, k) * torch.exp2(exponents), torch.randn(k, SIDE)
        a[0], a[1, 64:], a[2, :64] = 0, 0, 0
        truth = a.double() @ b.double()
        assert model.norm_error(model.streamed(a, b), truth) <= 2 * model.norm_error(model.fp32(a, b), truth)
        each = (model.streamed(a, b).double() - truth).norm(dim=1) / truth.norm(dim=1).clamp(min=1e-300)
        assert float(each.max()) <= CONTRACT, "row by row"


def test_a_shorter_interval_leaves_less_to_truncation():
    """K = 384, uniform: cuBLAS's fp32 was at 6.3e-8 there, ours at 1.91e-7 (H200, 2026-11-22)."""
    a, b = torch.rand(SIDE, 384), torch.rand(384, SIDE)
    truth = a.double() @ b.double()
    errors = {n: model.norm_error(model.product(a, b, scheme="fp16x3", interval=n), truth) for n in (64, 32, 16)}
    assert errors[64] == pytest.approx(1.91e-7, rel=0.1)
    assert max(errors[32], errors[16]) < 0.6 * errors[64]


@pytest.mark.parametrize("interval", bounds.CUTS)
@pytest.mark.parametrize("family", ["normal", "uniform", "one_sided", "wide", "all ones", "large first"])
def test_no_element_is_off_by_more_than_is_proven(family, interval):
    """Also where all bits that are cut off are ones, and where the first term is by far the largest of its sum."""
    for k, splits in ((26, 1), (54, 1), (200, 1), (1344, 3)):
        if family == "all ones":
            a, b = (torch.full(s, 2.0 - 2.0**-23) for s in ((SIDE, k), (k, SIDE)))
        elif family == "large first":
            a, b = torch.rand(SIDE, k) + 1, torch.rand(k, SIDE) + 1
            a[:, ::16] *= 2.0**6
        else:
            a, b = FAMILIES[family](k)
        made = model.product(a, b, scheme="fp16x3", interval=interval, splits=splits)
        left, right = a.double().abs(), b.double().abs()
        sums = left @ right
        hidden = left.amax(1)[:, None] * right.sum(0) + right.amax(0) * left.sum(1)[:, None]
        off = (made.double() - a.double() @ b.double()).abs() - 2.0**-50 * hidden
        assert float((off / sums).max()) <= bounds.error_bound(interval, k=k, splits=splits)


def test_the_interval_is_a_knob_as_far_as_the_proof_goes():
    """Where its bound is at most fp32's own; the longer it is, the less it costs, and the later that is so."""
    for k in range(1, 3000):
        allowed = bounds.intervals(k)
        assert all(bounds.error_bound(i, k=k) <= k * 2.0**-24 for i in allowed)
        assert all(bounds.error_bound(i, k=k) > k * 2.0**-24 for i in set(bounds.CUTS) - set(allowed))
    least = {i: next(k for k in range(1, 100) if i in bounds.intervals(k)) for i in bounds.CUTS}
    assert least == {64: 54, 32: 34, 16: 26} == dict(product_points._PROVEN)
    assert all(i in bounds.intervals(k) for i, first in least.items() for k in range(first, 70000, 61))


def test_without_promotion_it_would_not_pass():
    a, b = torch.rand(SIDE, 960), torch.rand(960, SIDE)
    truth = a.double() @ b.double()
    assert model.norm_error(model.product(a, b, promote=0), truth) > 4 * model.norm_error(model.fp32(a, b), truth)


@pytest.mark.parametrize("scheme", ["shared", "fp16x3"])
def test_splits_sum_to_within_both_levels(scheme):
    a, b = torch.randn(SIDE, 1000), torch.randn(1000, SIDE) * torch.exp2(torch.arange(1000) / 100.0)[:, None]
    truth = a.double() @ b.double()
    error = model.norm_error(model.product(a, b, scheme=scheme, splits=4), truth)
    assert error <= 2 * model.norm_error(model.fp32(a, b), truth)


@pytest.mark.parametrize("scheme", ["shared", "fp16x3", "tf32"])
def test_what_is_not_finite_comes_out_where_fp32_puts_it(scheme):
    """Infinities times numbers, zeros, infinities, and numbers that vanish beside the largest of their column."""
    a, b = torch.randn(12, 70), torch.randn(70, 12)
    a[0, 3], a[1, 5], a[2, 7], a[3, 9] = inf, -inf, nan, inf
    a[3, 10] = inf  # of two products with it, one may be of the other sign
    a[4] = 0
    a[5] = 2.0**-149
    a[6, 64] = inf
    b[:, 0] = 0
    b[3, 1], b[5, 1] = 0.0, inf
    b[3, 2] = inf
    b[3, 3] = 2.0**-149
    b[64, 4], b[0, 4] = -1e-30, 1e30
    b[:, 5] = 1e-40
    b[20, 6] = nan
    b[9, 7], b[10, 7] = 1.0, -1.0
    b[:, 8] = 2.0**127
    truth = (a.double() @ b.double()).float()
    made = [model.product(a, b, scheme=scheme), model.wide(a, b)]
    for found in made if scheme == "tf32" else [*made, model.streamed(a, b, scheme=scheme)]:
        assert torch.equal(found.isnan(), truth.isnan())
        assert torch.equal(torch.where(truth.isinf(), found, 0.0), torch.where(truth.isinf(), truth, 0.0))
        assert not bool(found[4, 1:3].isfinite().any()) and float(found[4, 4]) == 0.0


@pytest.mark.parametrize("scheme", ["shared", "fp16x3"])
def test_a_product_of_one_overflows_and_vanishes_where_fp32_does(scheme):
    """Exponents are added before they are applied: nothing overflows midway."""
    a = torch.tensor([[2.0**127], [2.0**-149], [1.0], [0.0], [2.0**64]])
    b = torch.tensor([[2.0**-149, 2.0**127, 2.0**-126, 2.0**0, 2.0**63]])
    assert torch.equal(model.product(a, b, scheme=scheme), (a.double() @ b.double()).float())
    assert torch.equal(model.wide(a, b), (a.double() @ b.double()).float())


def test_the_pair_holds_23_bits_and_is_never_zero_but_for_zero():
    x = spread(32, 512, 12)
    x[0] = 0
    for shift in (0, 11):
        hi, lo, exponent = model.split(x, shift)
        back = (hi + lo * 2.0**-shift) * torch.exp2(-exponent.double())[:, None]
        highest = x.abs().amax(1, keepdim=True).double()
        floor = highest * 2.0 ** -(39 if shift == 0 else 50)
        assert bool(((back - x.double()).abs() <= x.abs().double() * 2.0**-23 + floor).all())
        assert torch.equal(hi == 0, x == 0) and int(exponent[0]) == 0
        assert bool((hi.abs().amax(1)[1:] >= 2.0**14).all()) and bool((hi.abs() <= 2.0**15).all())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_what_is_rounded_is_as_accurate_as_tf32(family):
    """11 bits of each factor, whatever the exponents of a row's elements: TF32 keeps as many."""
    a, b = FAMILIES[family](704)
    truth = a.double() @ b.double()
    tf32 = model.norm_error(model.tf32(a).double() @ model.tf32(b).double(), truth)
    error = model.norm_error(model.product(a, b, scheme="tf32", promote=0, splits=2), truth)
    assert error <= 1.2 * tf32 + 1e-5, f"{error:.2g}, TF32 {tf32:.2g}"
    assert error > 1e-6, "it is rounded"


def test_what_would_vanish_where_it_is_rounded_is_off_by_less_than_the_least_fp16():
    """2^-24 of a scale where the largest of a row is 2^14 at least: 2^-38 of it."""
    a, b = opposite(704, 60)
    for x in (a, b.t().contiguous()):
        hi, _, exponent = model.split(x, 0)
        off = (torch.ldexp(hi, -exponent[:, None]) - x.double()).abs()
        most = x.double().abs().amax(1, keepdim=True)
        assert bool((off <= (x.double().abs() * 2.0**-11).clamp(min=most * 2.0**-38)).all())
        assert torch.equal(hi == 0, x == 0)
    worst = model.worst_error(model.product(a, b, scheme="tf32", promote=0), a, b)
    assert worst <= model.worst_error(model.tf32(a).double() @ model.tf32(b).double(), a, b) + 2.0**-36
