"""What is broadcast over a part of a batch, of rows or of columns is read where it lies: kernels of it compile for
sm_90a and sm_80 without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from fakes.launches import Launches
from tilewright.kernels.cuda.common import math as m
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.gemm.epilogue.batch_map import part_of, placed
from tilewright.kernels.cuda.gemm.epilogue.epilogue import EpilogueStore
from tilewright.kernels.cuda.gemm.host.compiling import (
    compile_ampere,
    compile_combine,
    compile_product,
    compile_streamed,
)
from tilewright.kernels.cuda.gemm.host.fused import FusedProduct, ProductSpec
from tilewright.kernels.cuda.gemm.host.kernels import Epilogue, KernelStore
from tilewright.kernels.cuda.gemm.host.launch import Gemm
from tilewright.kernels.cuda.gemm.host.plan import Point

pytestmark = pytest.mark.one_in(4)

SMALL_SPILL, AHEAD = 64, 1024  # bytes a thread; of what is read ahead of a line of a staged tile
LAYERS = (part_of(4, 32, 8), part_of(8, 32, 1))  # (4, 1, M, K) @ (8, K, N)


def test_where_each_matrix_of_a_batch_is_read() -> None:
    assert LAYERS == ((8, 0), (1, 8))
    assert [placed(i, LAYERS[0]) for i in (0, 7, 8, 31)] == [0, 0, 1, 3]
    assert [placed(i, LAYERS[1]) for i in (0, 7, 8, 31)] == [0, 7, 0, 7]
    assert placed(13, part_of(3, 24, 4)) == 0 and placed(11, part_of(3, 24, 4)) == 2
    assert part_of(1, 32, 1) is part_of(32, 32, 1) is None and placed(5, None) == 5


def masked(product, mask, table, scale):
    return m.where(mask, m.mul(m.add(product, table, "f32"), m.cast(scale, "f32"), "f32"), -1.0, "f32")


MASKED = {
    "function": masked, "names": ("mask", "table", "scale"),
    # A mask of every eighth layer, a table whose rows begin anew after 200, and a number of every 16 columns.
    "parts": ((None, None, (8, 0)), ((1, 200), None, None), (None, (16, 0), None)),
}  # fmt: skip
READS = (("bool", ((None, 1, None), True)), ("bf16", ((None, 1, 0), True)), ("i64", ((0, 1, 0), True)))


def finish(dtype="bf16", vector=8, **more):
    return EpilogueStore(dtype, vector=vector, layers=LAYERS, **MASKED, **more)


@pytest.mark.few(1, 3, 4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"tile_m": 128, "tile_n": 128, "pingpong": True},
        {"tile_m": 128, "tile_n": 128, "pingpong": True, "staged": True},
        {"tile_m": 128, "tile_n": 256, "bulk": True},
        {"tile_m": 64, "tile_n": 32, "cluster_m": 1, "small_m": True},
        {"tile_m": 128, "tile_n": 128, "cluster_m": 1, "scheme": "fp16x3"},
        {"tile_m": 128, "tile_n": 128, "cluster_m": 1, "scheme": "bf16x6"},
    ],
)
def test_kernels_read_a_mask_a_table_and_integers(tmp_path, settings):
    """A mask's pairs come as one access of 16 bits; what is a table's row is read in pairs; of 16 columns one number is
    read for each of a pair."""
    point = Point(**settings)
    keep = f"--keep-ptx --keep-cubin --dump-dir={tmp_path}"
    launch = compile_product(point, element=point.halves if point.scales else "bf16", majors=("k", "k"), operands=READS,
                             finish=finish(), options=keep)  # fmt: skip
    (kernel,) = taken(launch.artifacts.CUBIN)
    ptx = launch.artifacts.PTX
    assert kernel.local_bytes <= (AHEAD if point.staged else SMALL_SPILL)
    assert re.search(r"ld\.global\.(v2\.[bus]8|[bus]16)", ptx), "a pair of booleans"
    assert re.search(r"ld\.global\.(v2\.b16|b32)", ptx) and re.search(r"ld\.global\.[bus]64", ptx)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_streamed_ones_and_sums_of_parts_of_k_do_too(turned):
    point = Point(tile_m=128, tile_n=128, cluster_m=1, scheme="fp16x3", streamed=True)
    compile_streamed(point, major="k", finish=finish("f32", 1 if turned else 4, swap_ab=turned), operands=READS)
    compile_combine(finish("f32", 1), operands=READS)


@pytest.mark.slow
def test_so_do_kernels_without_tma():
    point = Point(tile_m=64, tile_n=64, cluster_m=1)
    compile_ampere(point, element="bf16", finish=finish(), operands=READS)


def test_exponents_of_parts_of_k_are_a_batchs_own():
    point = Point(tile_m=128, tile_n=128, cluster_m=1, scheme="fp16x3", split_k=4)
    with pytest.raises(ValueError, match="split_k=1"):
        Gemm(point, "f32", layers=LAYERS)


SMALL = Point(tile_m=64, tile_n=64, cluster_m=1)
FP32 = replace(SMALL, scheme="fp16x3")
STREAMED = Point(tile_m=128, tile_n=128, cluster_m=1, scheme="fp16x3", streamed=True)


def numbers(*shape):
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(sum(shape))).float() / 8


@pytest.mark.parametrize("point", [SMALL, replace(SMALL, split_k=3), FP32, STREAMED], ids=lambda p: str(p.split_k))
@pytest.mark.parametrize("turned", [False, True])
def test_calls_hand_over_matrices_once_and_operands_as_they_are(point, turned):
    """What a launch gets, multiplied by torch: planes of as many matrices as there are, and a table of 20 rows."""
    dtype = torch.float32 if point.scales else torch.bfloat16
    a, b = numbers(4, 40, 512).to(dtype), numbers(8, 512, 24).to(dtype)
    table, mask = numbers(20, 24), numbers(4, 1, 24)
    epilogue = Epilogue(function=lambda product, table, mask: product + table + mask, names=("table", "mask"),
                        dtypes=("f32", "f32"), batched=True,
                        parts=(((1, 20), None, None), (None, None, (8, 0))))  # fmt: skip
    gemm = Gemm(point, "f32", epilogue, swap_ab=turned, store=KernelStore(known=Launches()), layers=LAYERS)
    beside = table.repeat(2, 1) + mask.repeat_interleave(8, 0)
    wanted = (a.float()[:, None] @ b.float()).reshape(32, 40, 24) + beside
    for _ in range(2):
        torch.testing.assert_close(gemm(a, b, table, mask), wanted)


def test_a_spec_says_what_serves_several():
    left, right, table, output = (
        ArraySpec(name=n, dtype="bf16", shape=s)
        for n, s in zip("abto", ((4, 40, 64), (8, 64, 24), (1, 20, 24), (32, 40, 24)), strict=True)
    )
    spec = ProductSpec(name="p", left=left, right=right, operands=(table,), output=output, each=(8, 1),
                       epilogue=lambda product, t: product + t, partly=(("t", (1, 1, 1)),))  # fmt: skip
    assert spec.sizes == (32, 40, 24, 64) and spec.layers == LAYERS
    assert spec.parts == (((1, 20), None, None),)
    fused = FusedProduct(spec, {"tile": "64x64"})
    fused.gemm.kernels.store = KernelStore(known=Launches())
    operands = [numbers(*o.shape).bfloat16() for o in spec.read]
    (result,) = fused(*operands)
    a, b, t = (x.float() for x in operands)
    torch.testing.assert_close(result, ((a[:, None] @ b).reshape(32, 40, 24) + t.repeat(1, 2, 1)).bfloat16())
