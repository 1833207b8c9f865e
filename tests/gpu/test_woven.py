"""Products that split their fp32 right operand themselves, against float64 on a GPU: see `gemm/woven.py`."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from tilewright.kernels.cuda import math as m
from tilewright.kernels.cuda.gemm.launch import Epilogue, Gemm
from tilewright.kernels.cuda.gemm.plan import Point

FLOOR = 8 * 2.0**-23  # docs/precision.md
TILES = {"128x256": (128, 256, 2, 1), "256x128": (256, 128, 1, 2), "128x128": (128, 128, 2, 1), "one": (128, 128, 1, 1)}
SHAPES = ((1024, 2048, 2048), (300, 520, 272), (128, 256, 256), (65, 1000, 1040), (1, 1, 16), (7, 300, 4096),
          (2500, 3000, 528), (257, 9, 512))  # fmt: skip
_made: dict[tuple[object, ...], Gemm] = {}


def woven(tile="128x256", *, across=False):
    key = (tile, across)
    if key not in _made:
        names = ("tile_m", "tile_n", "cluster_m", "cluster_n")
        point = Point(scheme="scaled", woven=True, **dict(zip(names, TILES[tile], strict=True)))
        _made[key] = Gemm(point, "f32", turned=across)
    return _made[key]


def matrices(rows, columns, k, *, across, seed=0):
    """A and B, of which the one that is split in the product lies along K."""
    generator = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn(rows, k, device="cuda", generator=generator)
    b = torch.randn(columns, k, device="cuda", generator=generator).t()
    return (a, b.contiguous()) if across else (a, b)


def check(found, a, b):
    truth = a.double() @ b.double()
    own = float(((a @ b).double() - truth).norm() / truth.norm())
    error = float((found.double() - truth).norm() / truth.norm())
    assert error <= max(2 * own, FLOOR), f"{tuple(truth.shape)}: {error:.3g}, torch {own:.3g}"


@pytest.fixture(autouse=True)
def whole_precision():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("tile", list(TILES))
def test_every_tile_and_size(tile, across):
    for seed, shape in enumerate(SHAPES):
        a, b = matrices(*shape, across=across, seed=seed)
        check(woven(tile, across=across)(a, b), a, b)


def test_the_same_each_time_whoever_splits_what_also_from_two_streams():
    a, b = matrices(1024, 4096, 4096, across=False)
    run = woven()
    first = run(a, b)
    check(first, a, b)
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        with torch.cuda.stream(other):
            beside = run(a, b)
        here = run(a, b)
        torch.cuda.synchronize()
        assert torch.equal(first, here) and torch.equal(first, beside)


@pytest.mark.parametrize("across", [False, True])
def test_exponents_that_change_along_k(across):
    """Chunks of K that are larger by far than those before, or smaller, or zero, row by row."""
    for seed in range(3):
        a, b = matrices(200, 400, 2048, across=across, seed=seed)
        of_w = a if across else b.t()  # (rows, K)
        of_w *= torch.exp2(torch.randint(-60, 61, (of_w.shape[0], 8), device="cuda").float()).repeat_interleave(256, 1)
        of_w[torch.rand(of_w.shape[0], 8, device="cuda").repeat_interleave(256, 1) < 0.3] = 0.0
        found = woven(across=across)(a, b)
        truth = a.double() @ b.double()
        mine = (found.double() - truth).norm(dim=1 if across else 0) / truth.norm(dim=1 if across else 0).clamp(
            min=1e-300
        )
        assert float(mine.max()) <= FLOOR, seed


def test_rows_that_grow_and_lie_at_the_ends_of_fp32():
    a, b = matrices(64, 256, 1024, across=False)
    rows = b.t()
    rows[:64] *= 2.0**-140
    rows[64:128] *= 2.0**120
    rows[128:192] *= torch.exp2(torch.arange(4, device="cuda").float() * 9).repeat_interleave(256)
    rows[192:] = 0.0
    a *= 2.0**-20
    found, truth = woven()(a, b), a.double() @ b.double()
    assert not found[:, 192:].any()
    for part in (slice(64, 128), slice(128, 192)):
        error = (found[:, part].double() - truth[:, part]).norm() / truth[:, part].norm()
        assert float(error) <= FLOOR
    assert float((found[:, :64].double() - truth[:, :64]).abs().max()) <= 2.0**-148


def test_infinite_and_nan_come_out_where_fp32_puts_them():
    a, b = matrices(130, 300, 768, across=False)
    a[3, 5], b[600, 7], b[1, 8], b[700, 9], a[4] = inf, -inf, nan, inf, 0.0
    found, truth = woven()(a, b), a @ b
    assert torch.equal(found.isnan(), truth.isnan())
    assert torch.equal(found.isinf(), truth.isinf()) and torch.equal(found[found.isinf()], truth[truth.isinf()])
    usual = truth.isfinite()
    assert torch.allclose(found[usual], truth[usual], rtol=1e-4, atol=1e-3)


def shifted(product, bias, scale):
    return m.mul(m.add(product, bias, "f32"), scale, "f32")


def test_an_epilogue_and_weights_that_change_between_calls():
    a, b = matrices(500, 1000, 1024, across=False)
    bias, scale = torch.randn(1000, device="cuda"), torch.rand(500, 1, device="cuda")
    point = Point(scheme="scaled", woven=True, tile_m=128, tile_n=256, cluster_m=2)
    run = Gemm(point, "f32", Epilogue(function=shifted, names=("bias", "scale"), dtypes=("f32", "f32")))
    for _ in range(3):
        truth = (a.double() @ b.double() + bias.double()) * scale.double()
        error = (run(a, b, bias, scale).double() - truth).norm() / truth.norm()
        assert float(error) <= FLOOR
        b.mul_(-1.5)
