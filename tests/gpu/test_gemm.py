"""Matrix products against float64 on a GPU: sizes, transposes, strides, types, knobs, special values, epilogues."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import inf, nan

import pytest
import torch

from fakes.gemm_model import EIGHTHS, EIGHTHS_OF_ONE_SIGN, UNPROMOTED
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.gemm.epilogue.epilogue import EpilogueStore
from tilewright.kernels.cuda.gemm.epilogue.expression import ALL
from tilewright.kernels.cuda.gemm.host import factors
from tilewright.kernels.cuda.gemm.host.compiling import compile_ampere
from tilewright.kernels.cuda.gemm.host.launch import Epilogue, Gemm
from tilewright.kernels.cuda.gemm.host.plan import Point

FLOOR = {torch.float32: 8 * 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # docs/precision.md
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
SHAPES = [
    (128, 128, 64), (256, 256, 512), (512, 384, 1024), (1, 1, 1), (1, 7, 3), (7, 1, 129), (2, 3, 64), (63, 65, 67),
    (129, 257, 193), (300, 77, 1001), (1000, 1000, 1000), (1024, 768, 4096), (31, 2048, 577), (2049, 33, 100),
    (513, 515, 8192),
]  # fmt: skip
TILES = [(256, 128, 1, 2), (128, 256, 2, 1), (128, 128, 2, 1), (128, 128, 1, 1), (128, 64, 1, 1), (64, 128, 1, 1),
         (64, 64, 1, 1), (128, 128, 1, 2), (128, 128, 2, 2)]  # fmt: skip
_made: dict[tuple[object, ...], Gemm] = {}


def gemm(dtype=torch.float32, *, across=False, **knobs):
    """The same Gemm for the same knobs: it compiles once, whatever the sizes. `across`: of C's transpose."""
    key = (dtype, across, *sorted(knobs.items()))
    if key not in _made:
        _made[key] = Gemm(Point(**knobs), NAMES[dtype], swap_ab=across)
    return _made[key]


def tile(shape, scheme, **more):
    names = ("tile_m", "tile_n", "cluster_m", "cluster_n")
    return dict(zip(names, shape, strict=True)) | {"scheme": scheme} | more


def matrix(rows, columns, *, dtype=torch.float32, swap_ab=False, seed=0):
    x = torch.randn((columns, rows) if swap_ab else (rows, columns), generator=torch.Generator().manual_seed(seed))
    x = x.to("cuda", dtype)
    return x.t() if swap_ab else x


def check(found, a, b, dtype=torch.float32):
    """At most twice torch's error in the norm, or the contract's floor; and the shape, the type, and no NaN."""
    torch.backends.cuda.matmul.allow_tf32 = False
    truth = a.double() @ b.double()
    scale = truth.norm()
    own = float(((a @ b).double() - truth).norm() / scale)
    error = float((found.double() - truth).norm() / scale)
    assert found.shape == truth.shape and found.dtype == dtype and found.is_contiguous()
    assert error <= max(2 * own, FLOOR[dtype]), f"{error:.3g}, torch {own:.3g}"


@pytest.fixture(autouse=True)
def whole_precision():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)


@pytest.mark.parametrize("scheme", ["fp16x3", "bf16x6"])
@pytest.mark.parametrize("swap_ab", [(False, False), (False, True), (True, False), (True, True)])
def test_fp32_of_every_shape_and_transpose(scheme, swap_ab):
    run = gemm(**tile((128, 128, 1, 1), scheme))
    for n, (rows, columns, k) in enumerate(SHAPES):
        a, b = matrix(rows, k, swap_ab=swap_ab[0], seed=n), matrix(k, columns, swap_ab=swap_ab[1], seed=n + 100)
        check(run(a, b), a, b)


@pytest.mark.parametrize("scheme", ["fp16x3", "bf16x6", "tf32"])
@pytest.mark.parametrize("splits", [1, 4])
def test_planes_along_k_of_what_lies_across_it(monkeypatch, scheme, splits):
    """Of every shape, as of 2048 rows and more; of views and of batches."""
    monkeypatch.setattr(factors, "CROSSED_ROWS", 1)
    run = gemm(**tile((128, 128, 1, 1), scheme, split_k=splits))
    run._noted.clear()  # other tests have met these shapes
    batch = torch.randn(3, 200, 136, device="cuda"), torch.randn(3, 136, 72, device="cuda")
    wide = torch.randn(1001, 301, device="cuda")
    pairs = [(matrix(m_, k, seed=n), matrix(k, columns, seed=n + 100)) for n, (m_, columns, k) in enumerate(SHAPES)]
    for a, b in (*pairs, batch, (matrix(90, 1001), wide[:, :77]), (matrix(90, 1001), wide[:, ::3])):
        found, truth = run(a, b), a.double() @ b.double()
        if scheme == "tf32" and truth.numel() < 1000:
            continue  # few sums, which may be next to nought
        error, own = (float((x.double() - truth).norm() / truth.norm()) for x in (found, a @ b))
        most = 2.0**-10 if scheme == "tf32" else max(2 * own, FLOOR[torch.float32])
        assert found.shape == truth.shape and error <= most, f"{tuple(a.shape)} x {tuple(b.shape)}: {error:.3g}"
    planes = [key[2].crossed for key in run.kernels.store.known if key[0] == "split" and key[2].major == "r"]
    assert any(planes), "some are crossed"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("swap_ab", [(False, False), (False, True), (True, False), (True, True)])
def test_half_types_of_every_shape_and_transpose(dtype, swap_ab):
    run = gemm(dtype, **tile((128, 256, 2, 1), "plain"))
    for n, (rows, columns, k) in enumerate(SHAPES):
        a = matrix(rows, k, dtype=dtype, swap_ab=swap_ab[0], seed=n)
        b = matrix(k, columns, dtype=dtype, swap_ab=swap_ab[1], seed=n + 100)
        check(run(a, b), a, b, dtype)


@pytest.mark.parametrize("scheme", ["plain", "fp16x3"])
@pytest.mark.parametrize("shape", TILES)
def test_every_tile_and_cluster(scheme, shape):
    dtype = torch.bfloat16 if scheme == "plain" else torch.float32
    run = gemm(dtype, **tile(shape, scheme))
    for rows, columns, k in ((777, 1300, 200), (4100, 2056, 328), (65, 40, 64)):
        a, b = matrix(rows, k, dtype=dtype), matrix(k, columns, dtype=dtype, seed=1)
        check(run(a, b), a, b, dtype)


@pytest.mark.parametrize("scheme", ["plain", "fp16x3"])
@pytest.mark.parametrize("splits", [2, 3, 16])
def test_splits_of_k_and_repeated_calls(scheme, splits):
    """The same to the last bit each time: partial sums are added in order."""
    dtype = torch.bfloat16 if scheme == "plain" else torch.float32
    run = gemm(dtype, **tile((128, 128, 1, 1), scheme, split_k=splits))
    for rows, columns, k in ((256, 256, 32768), (130, 67, 5000), (64, 64, 65), (5, 3, 1)):
        a, b = matrix(rows, k, dtype=dtype), matrix(k, columns, dtype=dtype, seed=1)
        found = run(a, b)
        check(found, a, b, dtype)
        assert all(torch.equal(found, run(a, b)) for _ in range(5))


def test_stages():
    for knobs in ({"stages": 2}, {"stages": 4}):
        run = gemm(torch.bfloat16, **(tile((128, 128, 2, 1), "plain") | knobs))
        a, b = matrix(3000, 500, dtype=torch.bfloat16), matrix(500, 2500, dtype=torch.bfloat16, seed=1)
        check(run(a, b), a, b, torch.bfloat16)


@pytest.mark.parametrize("scheme", ["plain", "fp16x3"])
def test_batches_and_strides(scheme):
    dtype = torch.bfloat16 if scheme == "plain" else torch.float32
    for splits in (1, 4):
        run = gemm(dtype, **tile((128, 128, 1, 1), scheme, split_k=splits))
        for rows, columns, k in ((128, 136, 512), (77, 33, 301)):
            a = torch.randn(5, rows, k, device="cuda").to(dtype)
            b = torch.randn(5, columns, k, device="cuda").to(dtype).transpose(1, 2)
            check(run(a, b), a, b, dtype)
            check(run(b.transpose(1, 2), a.transpose(1, 2)), b.transpose(1, 2), a.transpose(1, 2), dtype)
        wide = torch.randn(300, 1001, device="cuda").to(dtype)
        for view in (wide[:, 1:514], wide[::2, :512], wide[:, ::3], wide[3:4].expand(90, 1001), wide[:, :1]):
            other = torch.randn(view.shape[1], 65, device="cuda").to(dtype)
            check(run(view, other), view, other, dtype)


@pytest.mark.parametrize("scheme", ["plain", "fp16x3"])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_batch_beyond_what_a_grid_has_along_y_and_z(scheme, splits):
    """70000 matrices: splits, products and the sum of parts go along x; a factor lies across K, too."""
    dtype = torch.bfloat16 if scheme == "plain" else torch.float32
    run = gemm(dtype, **tile((64, 64, 1, 1), scheme, split_k=splits))
    for across in (False, True):
        a, b = (torch.randn(70000, 16, 136, device="cuda").to(dtype) for _ in range(2))
        a = a.transpose(1, 2).contiguous().transpose(1, 2) if across else a
        check(run(a, b.transpose(1, 2)), a, b.transpose(1, 2), dtype)


BEYOND = {  # (batch, M, N, K), C's type, whether it is C's transpose, the knobs
    "result": ((1, 65536, 65536, 64), torch.bfloat16, False, tile((128, 256, 2, 1), "plain", bulk=True)),
    "by threads": ((1, 65536, 65537, 64), torch.bfloat16, False, tile((128, 128, 2, 1), "plain", pingpong=True)),
    "batch of results": ((2100, 1024, 1024, 64), torch.bfloat16, False, tile((128, 256, 2, 1), "plain")),
    "parts of results": ((1, 49152, 49160, 128), torch.bfloat16, False, tile((128, 256, 2, 1), "plain", split_k=2)),
    "small_m": ((1, 16, 300000, 8192), torch.bfloat16, True, tile((64, 16, 1, 1), "plain", small_m=True, split_k=2)),
    "copied": ((1, 70000, 256, 32767), torch.bfloat16, False, tile((128, 256, 2, 1), "plain")),
    "planes": ((1, 40000, 64, 65536), torch.float32, False, tile((128, 64, 1, 1), "fp16x3", split_k=2)),
    "streamed": ((1, 40000, 64, 65536), torch.float32, False, tile((128, 64, 1, 1), "fp16x3", streamed=True)),
}  # fmt: skip


@pytest.mark.alone
@pytest.mark.parametrize("which", BEYOND)
def test_more_elements_than_32_bits_count(which):
    """Of rows at both ends and where the number of an element first takes 32 bits and more."""
    (batch, rows, columns, k), dtype, across, knobs = BEYOND[which]
    assert max(batch * rows * columns, rows * k, columns * k) > 2**31
    draw = torch.Generator("cuda").manual_seed(7)
    a, b = (torch.randn(batch, side, k, dtype=dtype, device="cuda", generator=draw) for side in (rows, columns))
    b = b.transpose(1, 2)
    found = Gemm(Point(**knobs), NAMES[dtype], swap_ab=across)(a, b)
    for each in sorted({0, batch // 2 - 1, batch // 2, batch - 1} & set(range(batch))):
        for first in sorted({0, rows // 2 - 2, rows - 4}):
            few = slice(max(first, 0), max(first, 0) + 4)
            for left in (0, columns // 2, max(columns - 4096, 0)):
                part = slice(left, left + 4096)
                truth = a[each, few].double() @ b[each, :, part].double()
                own = (a[each, few] @ b[each, :, part]).double()
                error, theirs = (
                    float((x.double() - truth).norm() / truth.norm()) for x in (found[each, few, part], own)
                )
                assert error <= max(2 * theirs, FLOOR[dtype]), f"{each} {few} {part}: {error:.3g}, torch {theirs:.3g}"


@pytest.mark.parametrize("family", ["uniform", "one_sided", "wide", "wider", "subnormal", "ends", "opposite"])
def test_fp32_families(family):
    k, side = 3000, 200
    a, b = torch.randn(side, k, device="cuda"), torch.randn(k, side, device="cuda")

    def power(x, reach):
        return x * torch.exp2(torch.randint(-reach, reach + 1, x.shape, device="cuda").float())

    if family == "uniform":
        a, b = torch.rand_like(a), torch.rand_like(b)
    elif family == "one_sided":
        a, b = (torch.rand_like(x).add(1).mul(1024).floor().add(0.445).div(1024) for x in (a, b))
    elif family in ("wide", "wider"):
        a, b = (power(x, 12 if family == "wide" else 30) for x in (a, b))
    elif family == "subnormal":
        a, b = a * 2.0**-140, b * 2.0**60
    elif family == "ends":
        a, b = a * 2.0**110, b * 2.0**-140
    else:
        steps = torch.linspace(-12, 12, k, device="cuda").round()
        a, b = a * torch.exp2(steps), b * torch.exp2(-steps)[:, None]
    for splits in (1, 4):
        check(gemm(**tile((128, 128, 1, 1), "fp16x3", split_k=splits))(a, b), a, b)
        check(gemm(**tile((128, 128, 1, 1), "bf16x6", split_k=splits))(a, b), a, b)


@pytest.mark.parametrize("shape", [(128, 128, 2, 1), (128, 64, 1, 1), (64, 64, 1, 1)], ids=str)
def test_three_planes_hold_exponents_as_wide_as_fp32s(shape):
    """Where a row's elements lie 2^60 apart and their partners make all of them count, pairs of fp16 are not enough."""
    k, side = 3000, 200
    steps = torch.linspace(-30, 30, k, device="cuda").round()
    a = torch.randn(side, k, device="cuda") * torch.exp2(steps)
    b = torch.randn(k, side, device="cuda") * torch.exp2(-steps)[:, None]
    for more in ({}, {"split_k": 4}, {"bulk": shape[0] * shape[1] == 128 * 128}):
        check(gemm(**tile(shape, "bf16x6", **more))(a, b), a, b)
    with pytest.raises(AssertionError):
        check(gemm(**tile(shape, "fp16x3"))(a, b), a, b)


ODD = [(256, 208, 1, 2), (256, 192, 1, 2), (256, 176, 1, 2), (256, 160, 1, 2), (256, 144, 1, 2), (128, 240, 2, 1),
       (128, 224, 2, 1), (128, 208, 2, 1), (128, 192, 2, 1), (128, 176, 2, 1), (128, 160, 2, 1),
       (128, 144, 2, 1)]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", ODD, ids=str)
def test_tiles_of_columns_that_are_no_power_of_two(dtype, shape):
    """Written by threads and by TMA, in lines of 128, 64 and 32 bytes."""
    layouts = ((False, True), (False, False), (True, True), (True, False))
    for splits, bulk, those in ((1, False, layouts), (3, False, layouts[:1]), (1, True, layouts[:1])):
        run = gemm(dtype, **tile(shape, "plain", split_k=splits, bulk=bulk))
        for n, (rows, columns, k) in enumerate(((777, 1304, 200), (4100, 2056, 328), (65, 40, 64), (300, 161, 1000))):
            for swap_ab in those:
                a = matrix(rows, k, dtype=dtype, swap_ab=swap_ab[0], seed=n)
                b = matrix(k, columns, dtype=dtype, swap_ab=swap_ab[1], seed=n + 100)
                if columns % 8 == 0 or swap_ab[1]:
                    check(run(a, b), a, b, dtype)


@pytest.mark.parametrize("interval", [16, 32, 64])
def test_every_interval_of_promotion(interval):
    """As far off as the model of tensor cores says (tests/fakes/gemm_model.py): 1.9e-7 every 64 of K, 1.0e-7 below."""
    a, b = torch.rand(200, 384, device="cuda"), torch.rand(384, 200, device="cuda")
    truth = a.double() @ b.double()
    for knobs in (tile((128, 64, 1, 1), "fp16x3"), tile((128, 128, 2, 1), "fp16x3"),
                  tile((128, 64, 1, 1), "fp16x3", streamed=True)):  # fmt: skip
        found = gemm(**knobs, interval=interval)(a, b)
        error = float((found.double() - truth).norm() / truth.norm())
        low, high = (1.5e-7, 2.3e-7) if interval == 64 else (0.5e-7, 1.3e-7)
        assert low < error < high
        for n, (rows, columns, k) in enumerate(((300, 77, 1008), (63, 65, 32), (1000, 300, 4096))):
            x, y = matrix(rows, k, seed=n), matrix(k, columns, seed=n + 9)
            check(gemm(**knobs, interval=interval)(x, y), x, y)


def test_short_sums_and_few_results_are_at_most_twice_as_far_off_as_torchs():
    """The shapes at which they were not (H200, 2026-11-22), and families: docs/precision.md."""
    for rows, columns, k, splits in ((344, 383, 384, 1), (208, 944, 693, 2), (240, 144, 3630, 8), (88, 200, 3392, 8)):
        a, b = torch.rand(rows, k, device="cuda"), torch.rand(columns, k, device="cuda").t()
        truth = a.double() @ b.double()
        run = gemm(**tile((128, 64, 1, 1), "fp16x3", split_k=splits))
        ours, torchs = ((x.double() - truth).norm() for x in (run(a, b), a @ b))
        assert ours <= 2 * torchs, (rows, columns, k)


TURNS = [(torch.bfloat16, (128, 128, 2, 1)), (torch.float16, (128, 128, 1, 1)), (torch.bfloat16, (128, 128, 2, 2)),
         (torch.float16, (64, 256, 2, 1)), (torch.float16, (128, 160, 2, 1)), (torch.bfloat16, (128, 192, 2, 1)),
         (torch.float16, (128, 208, 2, 1)), (torch.bfloat16, (128, 144, 2, 1)),
         (torch.bfloat16, (64, 128, 1, 1))]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape"), TURNS, ids=str)
def test_warpgroups_that_take_turns(dtype, shape):
    """One tile for two warpgroups, odd and even numbers of tiles, more than a wave of them; each call the same."""
    for splits, bulk in ((1, False), (3, False), (1, True)):
        run = gemm(dtype, **tile(shape, "plain", split_k=splits, bulk=bulk, pingpong=True))
        layouts = ((False, True),) if bulk or splits > 1 else ((False, True), (False, False), (True, True))
        sizes = ((65, 40, 64), (777, 1304, 200), (4100, 2056, 328), (300, 161, 1000), (2048, 4096, 72))
        for n, (rows, columns, k) in enumerate(sizes):
            for swap_ab in layouts:
                a = matrix(rows, k, dtype=dtype, swap_ab=swap_ab[0], seed=n)
                b = matrix(k, columns, dtype=dtype, swap_ab=swap_ab[1], seed=n + 100)
                if columns % 8 == 0 or swap_ab[1]:
                    found = run(a, b)
                    check(found, a, b, dtype)
                    assert all(torch.equal(found, run(a, b)) for _ in range(3))
        a, b = torch.randn(3, 500, 264, device="cuda").to(dtype), torch.randn(3, 648, 264, device="cuda").to(dtype).mT
        check(run(a, b), a, b, dtype)


EARLY = [tile((128, 128, 2, 1), "plain", pingpong=True, staged=True),
         tile((128, 192, 2, 1), "plain", pingpong=True, bulk=True), tile((256, 144, 1, 2), "plain"),
         tile((64, 16, 1, 1), "plain", small_m=True, split_k=2),
         tile((64, 16, 1, 1), "plain", small_m=True, split_k=1, stages=5)]  # fmt: skip


@pytest.mark.parametrize("knobs", EARLY, ids=str)
def test_a_kernel_that_is_launched_early_waits_for_the_one_before(knobs):
    """Of forty products of which each reads the one before: as with a pause after each, in a graph, too, and behind a
    kernel of torch's that writes what the first reads."""
    run, small_m = gemm(torch.bfloat16, **knobs), "small_m" in knobs
    weight = matrix(512, 512, dtype=torch.bfloat16, swap_ab=not small_m) / 22
    begin = matrix(512, 16, dtype=torch.bfloat16) if small_m else matrix(3000, 512, dtype=torch.bfloat16)

    def chain(pause=False):
        y = begin * 2
        for _ in range(40):
            y = run(weight, y) if small_m else run(y, weight)
            if pause:
                torch.cuda.synchronize()
        return y + 0

    truth = chain(pause=True)
    assert truth.isfinite().all() and float(truth.float().abs().max()) > 0
    assert all(torch.equal(chain(), truth) for _ in range(5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain()
    begin.mul_(2)
    for _ in range(3):
        found.zero_()
        graph.replay()
        assert torch.equal(found, truth * 2), "bf16 times two is exact"


def test_a_kernel_that_is_launched_early_waits_for_a_memset_a_copy_and_another_stream():
    """In a graph and without: what it reads was set, copied and made beside just before."""
    run = gemm(torch.bfloat16, **EARLY[1])
    x, weight = matrix(2000, 512, dtype=torch.bfloat16), matrix(512, 512, dtype=torch.bfloat16, swap_ab=True)
    beside = torch.cuda.Stream()
    scratch, held = torch.empty_like(x), torch.empty_like(weight.t())

    def call():
        scratch.zero_()
        none = run(scratch, weight)
        held.copy_(weight.t())
        copied = run(x, held.t())
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            made = x * 2
        torch.cuda.current_stream().wait_stream(beside)
        return none, copied, run(made, weight)

    truth = run(x, weight)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = call()
    for found in (call(), replayed, replayed):
        scratch.fill_(1.0)
        held.zero_()
        graph.replay()
        none, copied, made = found
        assert not none.any() and torch.equal(copied, truth) and torch.equal(made, truth * 2)


@pytest.mark.parametrize("pingpong", [False, True])
def test_operands_that_are_read_in_pairs(pingpong):
    """Aligned ones, and those that are not: at odd addresses, with odd rows, turned, with columns of any stride."""
    epilogue = Epilogue(function=biased_relu, names=("bias", "residual"), dtypes=("bf16", "bf16"))
    for shape, bulk in (((128, 128, 2, 1), False), ((64, 256, 1, 1), True), ((128, 192, 1, 1), False)):
        run = Gemm(Point(**tile(shape, "plain", bulk=bulk, pingpong=pingpong)), "bf16", epilogue)
        for rows, columns in ((1030, 648), (77, 136), (300, 161)):
            a = matrix(rows, 328, dtype=torch.bfloat16)
            b = matrix(328, columns, dtype=torch.bfloat16, swap_ab=True, seed=1)
            whole = torch.randn(2 * rows + 1, 2 * columns + 8, device="cuda").bfloat16()
            biases = torch.randn(2 * columns + 1, device="cuda").bfloat16()
            pairs = [
                (whole[:rows, :columns], biases[:columns]),
                (whole[:rows, 8 : columns + 8], biases[1 : columns + 1]),
            ]
            if shape[1] == 128 and columns != 136:
                pairs += [
                    (whole[:rows, 1 : columns + 1], biases[:columns]),
                    (whole[1:, :columns][::2], biases[: 2 * columns : 2]),
                    (whole[:rows, :columns].t().contiguous().t(), biases[:columns]), (whole[:1, :columns], biases[:1]),
                ]  # fmt: skip
            for residual, bias in pairs:
                truth = torch.relu(a.double() @ b.double() + bias.double() + residual.double())
                for _ in range(2):
                    found = run(a, b, bias, residual)
                    assert found.shape == truth.shape
                    assert float((found.double() - truth).norm() / truth.norm()) <= FLOOR[torch.bfloat16]


STAGED = [((128, 128, 2, 1), True), ((64, 256, 2, 1), True), ((128, 192, 1, 1), True), ((128, 256, 2, 1), False),
          ((256, 128, 1, 2), False), ((64, 128, 1, 1), False)]  # fmt: skip


@pytest.mark.parametrize(("shape", "pingpong"), STAGED, ids=str)
def test_tiles_that_are_staged(shape, pingpong):
    """Beside nothing, a bias, and a matrix that comes by TMA (one for all of a batch, one each, views with wide rows)
    or can't; edges inside a line, several tiles a warpgroup, each call the same."""
    knobs = tile(shape, "plain", staged=True, pingpong=pingpong)
    dtype = torch.float16 if shape[1] == 192 else torch.bfloat16
    name = NAMES[dtype]
    bare = Gemm(Point(**knobs), name)
    added = Gemm(Point(**knobs), name, Epilogue(function=biased_relu, names=("bias", "residual"), dtypes=(name, name)))
    for n, (rows, columns, k) in enumerate(((1030, 648, 328), (77, 136, 64), (4100, 2056, 200), (300, 161, 1000))):
        a, b = matrix(rows, k, dtype=dtype, seed=n), matrix(k, columns, dtype=dtype, swap_ab=True, seed=n + 100)
        check(bare(a, b), a, b, dtype)
        whole, bias = torch.randn(rows, 2 * columns + 16, device="cuda").to(dtype), matrix(1, columns, dtype=dtype)
        whole = whole[:, : whole.shape[1] // 8 * 8].contiguous()
        for residual in (whole[:, :columns], whole[:, 8 : columns + 8], whole[:, 1 : columns + 1], whole[:1, :columns]):
            truth = torch.relu(a.double() @ b.double() + bias.double() + residual.double())
            found = added(a, b, bias, residual)
            assert float((found.double() - truth).norm() / truth.norm()) <= FLOOR[dtype]
            assert all(torch.equal(found, added(a, b, bias, residual)) for _ in range(3))
    both = Epilogue(function=biased_relu, names=("bias", "residual"), dtypes=(name, name), batched=True)
    each = Gemm(Point(**knobs), name, both)
    a, b = torch.randn(5, 500, 264, device="cuda").to(dtype), torch.randn(5, 648, 264, device="cuda").to(dtype).mT
    bias, residuals = torch.randn(1, 1, 648, device="cuda").to(dtype), torch.randn(5, 500, 648, device="cuda").to(dtype)
    for residual in (residuals, residuals[:1]):
        truth = torch.relu(a.double() @ b.double() + bias.double() + residual.double())
        found = each(a, b, bias, residual)
        assert float((found.double() - truth).norm() / truth.norm()) <= FLOOR[dtype]


@pytest.mark.parametrize("scheme", ["plain", "fp16x3"])
@pytest.mark.parametrize("shape", [(256, 128, 1, 2), (128, 256, 2, 1), (128, 64, 1, 1), (64, 64, 1, 1)], ids=str)
def test_results_that_leave_in_bulk(scheme, shape):
    """Through shared memory and TMA: edges inside a line, several tiles and layers a CTA, splits of K, other types."""
    dtype = torch.bfloat16 if scheme == "plain" else torch.float32
    for splits in (1, 3):
        run = gemm(dtype, **tile(shape, scheme, split_k=splits, bulk=True))
        for rows, columns, k in ((777, 1304, 200), (4100, 2056, 328), (65, 40, 64), (3, 8, 72), (1000, 3001, 64)):
            a, b = matrix(rows, k, dtype=dtype), matrix(k, columns, dtype=dtype, seed=1)
            if columns % 8 == 0 or dtype == torch.float32:
                check(run(a, b), a, b, dtype)
        a, b = torch.randn(7, 200, 136, device="cuda").to(dtype), torch.randn(7, 136, 328, device="cuda").to(dtype)
        check(run(a, b), a, b, dtype)
        assert all(torch.equal(run(a, b), run(a, b)) for _ in range(3))
    epilogue = Epilogue(function=biased_relu, names=("bias", "residual"), dtypes=(NAMES[dtype], NAMES[dtype]))
    a, b = matrix(900, 256, dtype=dtype), matrix(256, 712, dtype=dtype, seed=1)
    bias, residual = torch.randn(712, device="cuda").to(dtype), matrix(900, 712, dtype=dtype, seed=2)
    truth = torch.relu(a.double() @ b.double() + bias.double() + residual.double())
    for out, kind in ((NAMES[dtype], dtype), ("f16", torch.float16), ("f32", torch.float32)):
        run = Gemm(Point(**tile(shape, scheme, bulk=True)), out, epilogue)
        found = run(a, b, bias, residual)
        assert found.dtype == kind
        assert float((found.double() - truth).norm() / truth.norm()) <= FLOOR[kind]


def streamed(scheme="fp16x3", *, across=False, tile_n=128, cluster_m=1, split_k=1):
    """A product whose left matrix (`across`: right matrix) is split by the warps that multiply it."""
    return gemm(**tile((128, tile_n, cluster_m, 1), scheme, streamed=True, split_k=split_k), across=across)


STREAMED = [{}, {"tile_n": 64}, {"cluster_m": 2}, {"split_k": 3}]


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("knobs", STREAMED, ids=str)
def test_streamed_products_of_every_shape_and_layout(across, knobs):
    run = streamed(**knobs, across=across)
    shapes = ((128, 128, 64), (1, 1, 16), (7, 300, 80), (130, 257, 1008), (64, 1000, 5008), (300, 77, 4096),
              (512, 136, 112))  # fmt: skip
    for n, (rows, columns, k) in enumerate(shapes):
        for swap_ab in ((False, True), (False, False), (True, True)):
            a, b = matrix(rows, k, swap_ab=swap_ab[0], seed=n), matrix(k, columns, swap_ab=swap_ab[1], seed=n + 100)
            check(run(a, b), a, b)
    a = torch.randn(3, 40, 208, device="cuda")
    b = torch.randn(3, 150, 208, device="cuda").transpose(1, 2)
    check(run(a, b), a, b)
    check(run(a[:, :, 16:192], b[:, 16:192]), a[:, :, 16:192], b[:, 16:192])
    assert all(torch.equal(run(a, b), run(a, b)) for _ in range(3))


@pytest.mark.parametrize("across", [False, True])
def test_streamed_products_of_exponents_that_change_along_k(across):
    """Blocks of 64 have exponents of their own: rising, falling, none at all, and rows of zeros between."""
    run, side, k = streamed(across=across), 90, 1024
    powers = torch.arange(k, device="cuda") // 64
    for exponents in (powers * 8.0, -powers * 8.0, (powers % 2) * 100.0 - 50, torch.where(powers < 3, -140.0, 0.0),
                      torch.where(powers > 7, 90.0, 60.0)):  # fmt: skip
        a, b = torch.randn(side, k, device="cuda") * torch.exp2(exponents), torch.randn(k, side, device="cuda")
        a[3], a[4, 64:], a[5, :64], a[6, 128:192] = 0, 0, 0, 0
        check(run(a, b), a, b)
        check(run(b.t().contiguous(), a.t()), b.t(), a.t())
        b = b * torch.exp2(-exponents.clamp(-40, 40) / 4)[:, None]
        check(run(a, b), a, b)
        check(run(b.t().contiguous(), a.t()), b.t(), a.t())


@pytest.mark.parametrize("splits", [1, 3])
def test_a_streamed_product_with_an_epilogue(splits):
    epilogue = Epilogue(function=biased_relu, names=("bias", "residual"), dtypes=("f32", "f32"))
    for across in (False, True):
        point = Point(**tile((128, 128, 1, 1), "fp16x3", streamed=True, split_k=splits))
        run = Gemm(point, "f32", epilogue, swap_ab=across)
        for rows, columns, k in ((256, 512, 1024), (77, 131, 608)):
            a, b = matrix(rows, k), matrix(k, columns, swap_ab=True, seed=1)
            bias, residual = torch.randn(columns, device="cuda"), matrix(rows, columns, seed=2)
            truth = torch.relu(a.double() @ b.double() + bias.double() + residual.double())
            error = (run(a, b, bias, residual).double() - truth).norm() / truth.norm()
            assert float(error) <= FLOOR[torch.float32]


def upper(product, index_0, index_1):
    return m.where(m.ge(index_1, index_0, "bool"), product, 0, "f32")


def below(product, index_1, index_2):
    return m.where(m.le(index_2, m.add(index_1, -70, "i64"), "bool"), product, 3, "f32")


@pytest.mark.parametrize("scheme", ["plain", "fp16x3"])
@pytest.mark.parametrize("knobs", [(256, 128, 1, 2), (128, 128, 2, 1), (64, 64, 1, 1), (128, 128, 1, 1)], ids=str)
def test_triangles(scheme, knobs):
    """What no diagonal of the result needs is not multiplied, and there NaN and infinities leave no trace."""
    dtype = torch.bfloat16 if scheme == "plain" else torch.float32
    for splits in (1, 3):
        point = Point(**tile(knobs, scheme, split_k=splits))
        whole = Gemm(point, NAMES[dtype], Epilogue(function=upper, diagonals=(0, None)))
        batched = Gemm(point, NAMES[dtype], Epilogue(function=below, batched=True, diagonals=(None, -70)))
        for rows, columns, k in ((1000, 1000, 320), (1500, 320, 640), (328, 1208, 64), (70, 40, 200)):
            a, b = matrix(rows, k, dtype=dtype), matrix(k, columns, dtype=dtype, seed=1)
            truth = (a.double() @ b.double()).triu()
            error = (whole(a, b).double() - truth).norm() / truth.norm()
            assert float(error) <= FLOOR[dtype] and torch.equal(whole(a, b), whole(a, b).triu())
            pair = torch.stack([a, -a]), torch.stack([b, b * 2])
            truth = torch.bmm(*(p.double() for p in pair))
            truth = torch.where(torch.ones_like(truth[0], dtype=torch.bool).tril(-70), truth, 3.0)
            assert float((batched(*pair).double() - truth).norm() / truth.norm()) <= FLOOR[dtype]


def shifted(product, row, whole):
    return m.add(m.mul(product, row, "f32"), whole, "f32")


@pytest.mark.parametrize(
    ("dtype", "knobs"),
    [
        (torch.bfloat16, tile((128, 256, 2, 1), "plain")),
        (torch.bfloat16, tile((256, 128, 1, 2), "plain")),
        (torch.float16, tile((64, 128, 1, 1), "plain")),
        (torch.float32, tile((128, 128, 2, 1), "fp16x3")),
        (torch.float32, tile((128, 256, 1, 1), "fp16x3")),
        (torch.float32, tile((64, 64, 1, 1), "bf16x6")),
        (torch.float32, tile((128, 128, 1, 2), "tf32")),
    ],
    ids=str,
)
def test_stream_k(dtype, knobs):
    """Fewer tiles than clusters, as many, and more; one tile for all; the same bits each time, and as a CUDA graph."""
    point = Point(**knobs, stream_k=True)
    plain = Gemm(point, NAMES[dtype])
    ended = Gemm(point, NAMES[dtype], Epilogue(function=shifted, names=("row", "whole"), dtypes=(NAMES[dtype],) * 2))
    bound = 2.0**-10 if knobs["scheme"] == "tf32" else FLOOR[dtype]
    for rows, k, columns in ((128, 65536, 128), (512, 8192, 512), (1024, 8192, 1024), (2048, 4096, 2304),
                             (2000, 1096, 3080), (70, 200, 40), (4096, 640, 4096), (1536, 64, 2816)):  # fmt: skip
        a, b = matrix(rows, k, dtype=dtype), matrix(k, columns, dtype=dtype, seed=1)
        row, whole = matrix(1, columns, dtype=dtype, seed=2), matrix(rows, columns, dtype=dtype, seed=3)
        truth = a.double() @ b.double()
        found = plain(a, b)
        assert float((found.double() - truth).norm()) <= bound * float(truth.norm()), (rows, k, columns)
        assert all(torch.equal(found, plain(a, b)) for _ in range(3))
        truth = truth * row.double() + whole.double()
        error = float((ended(a, b, row, whole).double() - truth).norm())
        assert error <= bound * float(truth.norm()), (rows, k, columns)
    pair = torch.stack([a, -a]), torch.stack([b, b * 2])
    truth = torch.bmm(*(p.double() for p in pair))
    assert float((plain(*pair).double() - truth).norm()) <= bound * float(truth.norm())
    a, b = matrix(1024, 8192, dtype=dtype), matrix(8192, 1024, dtype=dtype, seed=1)
    wanted = plain(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = plain(a, b)
    for _ in range(5):
        found.zero_()
        graph.replay()
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("knobs", [tile((128, 128, 2, 1), "fp16x3"), tile((128, 256, 2, 1), "plain")], ids=str)
def test_stream_k_beside_other_work_ends(knobs):
    """Two streams whose kernels share the multiprocessors: who waits, waits for those that were started before."""
    dtype = torch.float32 if knobs["scheme"] == "fp16x3" else torch.bfloat16
    run = Gemm(Point(**knobs, stream_k=True), NAMES[dtype])
    a, b = matrix(1024, 4096, dtype=dtype), matrix(4096, 1024, dtype=dtype, seed=1)
    wanted = run(a, b)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    made = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                made.append(run(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(x, wanted) for x in made)


def _zeroed(x, diagonals):
    low, high = diagonals
    x = x if high is None else x.tril(high)
    return x if low is None else x.triu(low)


def _knobs_of_zeros():
    yield torch.bfloat16, False, tile((256, 128, 1, 2), "plain")
    yield torch.bfloat16, False, tile((128, 128, 2, 1), "plain", pingpong=True, staged=True)
    yield torch.bfloat16, False, tile((64, 32, 1, 1), "plain", small_m=True, split_k=3)
    yield torch.bfloat16, True, tile((64, 16, 1, 1), "plain", small_m=True, split_k=1)
    for scheme in ("fp16x3", "bf16x6", "tf32"):
        yield torch.float32, False, tile((128, 128, 2, 1), scheme)
    yield torch.float32, False, tile((64, 64, 1, 1), "fp16x3", split_k=3)
    yield torch.float32, False, tile((128, 256, 2, 1), "fp16x3", bulk=True)
    yield torch.float32, False, tile((128, 128, 2, 1), "fp16x3", streamed=True)
    yield torch.float32, True, tile((128, 64, 1, 1), "fp16x3", streamed=True)


@pytest.mark.parametrize(
    "zeros",
    [((None, 0), ALL), ((-70, 130), ALL), ((900, None), ALL), (ALL, (0, None)), (ALL, (-5, 5)), ((None, 0), (0, None))],
    ids=str,
)
@pytest.mark.parametrize(("dtype", "across", "knobs"), list(_knobs_of_zeros()), ids=str)
def test_what_meets_zeros_of_a_factor_alone_is_not_multiplied(zeros, dtype, across, knobs):
    """Factors with elements on some diagonals: right for all sizes, and NaN that meets no step of a tile leaves no
    trace: so its steps are left out."""
    run = Gemm(Point(**knobs), NAMES[dtype], swap_ab=across, zeros=zeros)
    bound = 2.0**-10 if knobs["scheme"] == "tf32" else FLOOR[dtype]
    for rows, k, columns in ((1000, 1008, 1000), (70, 1408, 40), (1500, 640, 328), (328, 64, 1208), (16, 1024, 16)):
        a, b = (_zeroed(matrix(*shape, dtype=dtype, seed=seed), diagonals)
                for seed, shape, diagonals in ((0, (rows, k), zeros[0]), (1, (k, columns), zeros[1])))  # fmt: skip
        truth = a.double() @ b.double()
        found = run(a, b).double()
        assert float((found - truth).norm()) <= bound * float(truth.norm()), (rows, k, columns)
        pair = torch.stack([a, -a]), torch.stack([b, b * 2])
        truth = torch.bmm(*(p.double() for p in pair))
        assert float((run(*pair).double() - truth).norm()) <= bound * float(truth.norm()), (rows, k, columns)
    if zeros[0] == (None, 0):
        a, b = matrix(1024, 1024, dtype=dtype).tril(), _zeroed(matrix(1024, 1024, dtype=dtype, seed=1), zeros[1])
        truth = (a.double() @ b.double())[:512]
        b[512:] = nan
        found = run(a, b)[:512].double()
        assert float((found - truth).norm()) <= bound * float(truth.norm())


@pytest.mark.parametrize("scheme", ["fp16x3", "bf16x6"])
@pytest.mark.parametrize("swap_ab", [False, True])
def test_what_is_not_finite_comes_out_where_fp32_puts_it(scheme, swap_ab):
    """Infinities times numbers, zeros, infinities, and numbers that vanish beside the largest of their column."""
    a, b = torch.randn(140, 70), torch.randn(70, 140)
    a[0, 3], a[1, 5], a[2, 7], a[3, 9], a[3, 10], a[6, 64] = inf, -inf, nan, inf, inf, inf
    a[4], a[5] = 0, 2.0**-149
    b[:, 0] = 0
    b[3, 1], b[5, 1], b[3, 2], b[3, 3] = 0.0, inf, inf, 2.0**-149
    b[64, 4], b[0, 4] = -1e-30, 1e30
    b[:, 5] = 1e-40
    b[20, 6] = nan
    b[9, 7], b[10, 7] = 1.0, -1.0
    b[:, 8] = 2.0**127
    truth = (a.double() @ b.double()).float()
    if swap_ab:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    padded = [torch.cat([a, torch.zeros(140, 10)], 1).cuda(), torch.cat([b, torch.zeros(10, 140)], 0).cuda()]
    runs = [gemm(**tile((128, 128, 1, 1), scheme))]
    if scheme != "bf16x6":
        runs += [streamed(scheme), streamed(scheme, across=True)]
    for run, given in zip(runs, ((a.cuda(), b.cuda()), padded, padded), strict=False):
        found = run(*given).cpu()
        assert torch.equal(found.isnan(), truth.isnan())
        assert torch.equal(torch.where(truth.isinf(), found, 0.0), torch.where(truth.isinf(), truth, 0.0))
        sound = truth.isfinite()
        sound[:, [4, 5, 8]] = False  # sums of such exponents, element by element, are no matter for a norm
        assert float((found - truth)[sound].norm() / truth[sound].norm()) < 1e-6
        assert bool((found[4, [2, 3, 5]].isnan() == truth[4, [2, 3, 5]].isnan()).all()) and float(found[4, 4]) == 0.0


@pytest.mark.parametrize("scheme", ["fp16x3", "bf16x6"])
def test_a_product_of_one_overflows_and_vanishes_where_fp32_does(scheme):
    a = torch.tensor([[2.0**127], [2.0**-149], [1.0], [0.0], [2.0**64]])
    b = torch.tensor([[2.0**-149, 2.0**127, 2.0**-126, 2.0**0, 2.0**63]])
    found = gemm(**tile((64, 64, 1, 1), scheme))(a.cuda(), b.cuda())
    assert torch.equal(found.cpu(), (a.double() @ b.double()).float())


@pytest.mark.parametrize("swap_ab", [False, True])
def test_the_pair_holds_23_bits(swap_ab):
    """Of rows that stay in registers, and of those that are read again; aligned and not; with K split and whole."""
    for rows, k in ((33, 64), (5, 1001), (40, 5000), (3, 40000), (64, 3000)):
        x = torch.randn(rows, k, device="cuda") * torch.exp2(torch.randint(-12, 13, (rows, k), device="cuda").float())
        x[0] = 0
        x = (x.t().contiguous().t() if swap_ab else x)[:, :, None]
        run = gemm(**tile((128, 128, 1, 1), "fp16x3"))
        for splits, chunk in ((1, -(-k // 64) * 64), (-(-k // 1024), 1024)):
            planes, exponents = run.factors.split(x, splits, chunk)
            each = exponents.double().repeat_interleave(chunk, 1)[:, :k]
            back = (planes[:, :, 0].double() + planes[:, :, 1].double() * 2.0**-11) * torch.exp2(-each)
            highest = torch.exp2(15 - each)
            floor = highest * 2.0**-50
            exact = x[:, :, 0].double()
            assert bool(((back - exact).abs() <= exact.abs() * 2.0**-23 + floor).all())
            assert torch.equal(planes[:, :, 0] == 0, exact == 0) and not bool(exponents[0].any())


def small_m(dtype, tile_n, splits, *, across, tile_m=64):
    return gemm(dtype, **tile((tile_m, tile_n, 1, 1), "plain", split_k=splits, small_m=True), across=across)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("splits", [1, 3, 8])
def test_skinny_products_of_every_side_and_layout(dtype, across, splits):
    """Sides up to the tile's and beyond; K of less steps than CTAs; every layout; the same bits each time."""
    for tile_m, tile_n in ((64, 16), (64, 32), (128, 64)):
        run = small_m(dtype, tile_n, splits, across=across, tile_m=tile_m)
        for n, (small, large, k) in enumerate(
            ((1, 768, 768), (tile_n, 4096, 4096), (tile_n - 3, 1000, 264), (tile_n + 5, 200, 64), (7, 50257, 72))
        ):
            rows, columns = (small, large) if across else (large, small)
            for swap_ab in ((False, True), (False, False), (True, True), (True, False)):
                a = matrix(rows, k, dtype=dtype, swap_ab=swap_ab[0], seed=n)
                b = matrix(k, columns, dtype=dtype, swap_ab=swap_ab[1], seed=n + 100)
                check(run(a, b), a, b, dtype)
        a, b = torch.randn(3, 20, 520, device="cuda").to(dtype), torch.randn(3, 520, 136, device="cuda").to(dtype)
        check(run(a, b), a, b, dtype)
        assert all(torch.equal(run(a, b), run(a, b)) for _ in range(3))


def test_a_skinny_product_with_an_epilogue():
    epilogue = Epilogue(function=biased_relu, names=("bias", "residual"), dtypes=("bf16", "bf16"))
    for across, rows, columns in ((True, 5, 1000), (False, 1000, 5), (True, 16, 4096)):
        point = Point(**tile((64, 16, 1, 1), "plain", small_m=True, split_k=4))
        run = Gemm(point, "bf16", epilogue, swap_ab=across)
        a = matrix(rows, 1024, dtype=torch.bfloat16)
        b = matrix(1024, columns, dtype=torch.bfloat16, swap_ab=True, seed=1)
        bias, residual = torch.randn(columns, device="cuda").bfloat16(), matrix(rows, columns, dtype=torch.bfloat16)
        truth = torch.relu(a.double() @ b.double() + bias.double() + residual.double())
        found = run(a, b, bias, residual)
        assert float((found.double() - truth).norm() / truth.norm()) <= FLOOR[torch.bfloat16]


def biased_relu(product, bias, residual):
    return m.maximum(m.add(m.add(product, bias, "f32"), residual, "f32"), 0.0, "f32")


@pytest.mark.parametrize("splits", [1, 4])
def test_epilogues(splits):
    for dtype, scheme in ((torch.bfloat16, "plain"), (torch.float32, "fp16x3")):
        epilogue = Epilogue(function=biased_relu, names=("bias", "residual"), dtypes=(NAMES[dtype], NAMES[dtype]))
        run = Gemm(Point(**tile((128, 128, 1, 1), scheme, split_k=splits)), NAMES[dtype], epilogue)
        for rows, columns, k in ((256, 512, 1024), (77, 131, 600)):
            a, b = matrix(rows, k, dtype=dtype), matrix(k, columns, dtype=dtype, seed=1)
            bias, residual = torch.randn(columns, device="cuda").to(dtype), matrix(rows, columns, dtype=dtype, seed=2)
            truth = torch.relu(a.double() @ b.double() + bias.double() + residual.double())
            error = (run(a, b, bias, residual).double() - truth).norm() / truth.norm()
            assert float(error) <= FLOOR[dtype]


def test_a_stream_of_its_own_and_a_graph():
    """What runs on another stream is ordered there; and a captured call replays on new contents."""
    run = gemm(**tile((128, 128, 1, 1), "fp16x3"))
    a, b = matrix(512, 512), matrix(512, 512, seed=1)
    run(a, b)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)
        a.add_(1.0)
        found = run(a, b)
    side.synchronize()
    check(found, a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(a, b)
    a.copy_(matrix(512, 512, seed=5))
    graph.replay()
    check(found, a, b)


@pytest.mark.parametrize("knobs", [{}, {"split_k": 4}, {"streamed": True}], ids=str)
def test_threads_with_streams_of_their_own_share_known_calls(knobs):
    """Memory of a call is its own, though no layout is planned twice; weights change in place meanwhile."""
    run = gemm(**tile((128, 128, 1, 1), "fp16x3"), **knobs)
    sets = [(matrix(300, 512, seed=n), matrix(512, 260, seed=n + 50)) for n in range(4)]

    def calls(number):
        a, b = sets[number]
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(25):
                found = run(a, b)
                check(found, a, b)
                b.mul_(-2)
        return number

    torch.cuda.synchronize()
    with ThreadPoolExecutor(max_workers=4) as pool:
        assert sorted(pool.map(calls, range(4))) == [0, 1, 2, 3]


def test_what_does_not_fit_is_refused():
    a = torch.randn(8, 8, device="cuda")
    with pytest.raises(ValueError, match="takes f32"):
        gemm(**tile((64, 64, 1, 1), "fp16x3"))(a.half(), a.half())
    with pytest.raises(ValueError, match="takes f16 or bf16"):
        gemm(torch.bfloat16, **tile((64, 64, 1, 1), "plain"))(a, a)
    with pytest.raises(ValueError, match="no product"):
        gemm(**tile((64, 64, 1, 1), "fp16x3"))(a, a[:7])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tile_m", "tile_n"), [(128, 128), (128, 64), (64, 64)])
def test_the_kernel_for_gpus_without_tma(tile_m, tile_n, dtype):
    """As compiled for this GPU: a tile's ends are those of wgmma."""
    point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=1)
    for batch, rows, columns, k in ((1, 128, 128, 64), (1, 300, 264, 1000), (3, 77, 40, 8), (1, 1025, 520, 4096)):
        a = torch.randn(batch, rows, k, device="cuda").to(dtype).permute(1, 2, 0)
        b = torch.randn(batch, columns, k, device="cuda").to(dtype).permute(1, 2, 0)
        c = torch.full((batch, rows, columns), 7.0, device="cuda")
        launch = compile_ampere(point, element=NAMES[dtype], finish=EpilogueStore("f32", vector=4), arch="sm_90a")
        launch(a, b, c.permute(1, 2, 0), 1, 1, 64)
        truth = a.permute(2, 0, 1).double() @ b.permute(2, 1, 0).double()
        error = float((c.double() - truth).norm() / truth.norm())
        assert error < max(1e-6, UNPROMOTED * k), f"{(batch, rows, columns, k)}: {error:.3g}"


def eighth(rows, columns, *, seed=0):
    return matrix(rows, columns, seed=seed).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("shape", [(256, 128, 1, 2), (128, 256, 2, 1), (128, 128, 1, 1), (64, 64, 1, 1)], ids=str)
@pytest.mark.parametrize("splits", [1, 4])
def test_float8_of_every_shape_is_as_near_as_torchs(shape, splits):
    """Beside float64. Tensor cores keep some 14 bits of such a sum: with 128 of K between promotions the model of
    tests/unit/kernels/test_gemm_numerics.py is 1.3e-4 off in the norm, 6e-4 where all terms have one sign."""
    run = Gemm(Point(**tile(shape, "fp8", split_k=splits)), "f32")
    one = torch.ones((), device="cuda")

    def near(a, b, most):
        truth = a.double() @ b.double()
        scale = truth.norm().clamp(min=1e-30)
        own = 0.0
        if all(size % 16 == 0 for size in (*a.shape, *b.shape)) and a.stride(1) == b.stride(0) == 1:
            own = float((torch._scaled_mm(a, b, one, one, out_dtype=torch.float32).double() - truth).norm() / scale)
        error = float((run(a, b).double() - truth).norm() / scale)
        assert error <= max(most, 2 * own), f"{tuple(a.shape)} x {tuple(b.shape)}: {error:.3g}, torch {own:.3g}"

    for rows, columns, k in SHAPES:
        few = rows * columns < 1000  # whose sum may be next to nought
        near(eighth(rows, k), eighth(columns, k, seed=1).t(), 2.0**-7 if few else EIGHTHS)
    one_sided = eighth(300, 4096).float().abs().to(torch.float8_e4m3fn)
    near(one_sided, one_sided.t(), EIGHTHS_OF_ONE_SIGN)
    swap_ab, other = eighth(4096, 300), eighth(4096, 300, seed=1)  # they lie across K: they are copied first
    near(swap_ab.t(), other, EIGHTHS)
    near(swap_ab.t(), swap_ab, EIGHTHS_OF_ONE_SIGN)


@pytest.mark.parametrize("shape", [(256, 128, 1, 2), (128, 256, 2, 1), (64, 64, 1, 1)])
@pytest.mark.parametrize("splits", [1, 4])
def test_what_is_rounded_is_as_accurate_as_tf32(shape, splits):
    """Of both transposes, odd sizes, exponents that differ from element to element, and strides."""
    for m_, n, k, wide in ((1024, 768, 4096, 0), (300, 77, 1001, 0), (129, 257, 193, 10), (513, 515, 8192, 10)):
        for swap_ab in (False, True):
            a, b = matrix(m_, k, swap_ab=swap_ab), matrix(k, n, swap_ab=not swap_ab, seed=1)
            for x in (a, b) if wide else ():
                x.mul_(torch.exp2(torch.randint(-wide, wide, x.shape, device="cuda").float()))
            found = gemm(**tile(shape, "tf32", split_k=splits))(a, b)
            truth = a.double() @ b.double()
            torch.backends.cuda.matmul.allow_tf32 = True
            own = float(((a @ b).double() - truth).norm() / truth.norm())
            torch.backends.cuda.matmul.allow_tf32 = False
            error = float((found.double() - truth).norm() / truth.norm())
            assert found.shape == truth.shape and 1e-6 < error <= max(2 * own, 2.0**-10), (
                f"{error:.3g}, torch {own:.3g}"
            )


@pytest.mark.parametrize("swap_ab", [False, True])
def test_a_rounded_product_keeps_what_is_not_finite(swap_ab):
    """Also where what an infinity meets is far below 2^-40 of the largest of its row or column, of either sign."""
    a, b = matrix(128, 256, swap_ab=swap_ab), matrix(256, 64, seed=1, swap_ab=swap_ab)
    b[5] *= 2.0**-60
    a[:, 20] *= 2.0**-80
    b[5, 9] = 2.0**-149
    a[3, 5], a[7, 9], b[20, 2], b[5, 10] = inf, nan, -inf, 0.0
    found, wanted = gemm(**tile((64, 64, 1, 1), "tf32"))(a, b), a @ b
    assert bool((wanted[3, [0, 1, 3, 9]].abs() == inf).all()) and bool(wanted[3, 10].isnan())
    assert torch.equal(found.isfinite(), wanted.isfinite())
    infinite = wanted.isinf()
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found[infinite], wanted[infinite])
