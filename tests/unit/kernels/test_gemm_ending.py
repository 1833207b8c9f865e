"""What the end of a tile does not wait for, in PTX: no GPU is needed."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tilewright.kernels.cuda.gemm.epilogue.epilogue import EpilogueStore
from tilewright.kernels.cuda.gemm.host.compiling import compile_product
from tilewright.kernels.cuda.gemm.host.plan import Point

pytestmark = [pytest.mark.slow, pytest.mark.each(3)]  # a second for each kernel

TOGETHER = (Point(tile_m=256, tile_n=128, cluster_m=1, cluster_n=2, bulk=True), Point(staged=True), Point())
NO_SHADOW = (Point(tile_n=128, pingpong=True, bulk=True), Point(tile_n=128, scheme="fp16x3"))
ZERO = "0f00000000"


@pytest.fixture(scope="module")
def ptx(tmp_path_factory):
    """Of the kernel at a point, which several tests look at; `more`: of its EpilogueStore."""

    @cache
    def compiled(point, **more):
        element = "f16" if point.planes > 1 else "bf16"
        finish = EpilogueStore("f32" if point.planes > 1 else "bf16", vector=4 if point.planes > 1 else 8, **more)
        options = f"--keep-ptx --dump-dir={tmp_path_factory.mktemp('ptx')}"
        return compile_product(point, element=element, majors=("k", "k"), finish=finish, options=options).artifacts.PTX

    return compiled


def in_the_shadow(text):
    """Between the wait of a step, which leaves its wgmma running, and that for a tile's last."""
    return text[text.index("wgmma.wait_group.sync.aligned \t1;") : text.rindex("wgmma.wait_group.sync.aligned \t0;")]


@pytest.mark.parametrize("point", TOGETHER, ids=str)
def test_the_next_place_is_found_and_sums_are_forgotten_while_wgmma_run(ptx, point):
    """The first wgmma of a tile adds to nothing, by a predicate; sums are not set to zero."""
    text = ptx(point)
    assert len(re.findall(r"\bdiv\.s32", in_the_shadow(text))) >= 3, "layer, band, column"
    assert ZERO not in text
    assert len(re.findall(r"\bdiv\.s32", text[text.rindex("wgmma.wait_group") :])) == 0


@pytest.mark.parametrize("point", NO_SHADOW, ids=str)
def test_what_nobody_waits_for_begins_at_zero(ptx, point):
    """In turns others multiply meanwhile; sums of two levels are added to."""
    assert ZERO in ptx(point)


def test_tiles_without_a_step_of_k_are_zero(ptx):
    """Those above a triangle have no wgmma that would forget."""

    def kept(product, index_0, index_1):
        return product

    assert ZERO in ptx(Point(), function=kept, diagonals=(None, 0))


def test_buffers_are_waited_for_once_and_then_when_they_are_met_again(ptx):
    """128 x 256 of 16 bits in four lines through two buffers: before the tile's end, the third, the fourth, at the end
    of all."""
    text = ptx(Point(bulk=True))
    assert Point(bulk=True).line_bytes == 128
    assert len(re.findall(r"cp\.async\.bulk\.wait_group\.read", text)) == 4
    assert "cp.async.bulk.wait_group.read" in in_the_shadow(text)


@pytest.mark.parametrize(("point", "count"), [(Point(), 2), (Point(bulk=True), 3), (Point(staged=True), 3)], ids=str)
def test_what_tma_reads_of_each_matrix_is_asked_for_at_once(ptx, point, count):
    """Of C's, too, where TMA writes it."""
    assert len(re.findall(r"prefetch\.param\S*tensormap|prefetch\.tensormap", ptx(point))) == count
