"""Points of a matrix product: what fits, and how a problem is cut."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tilewright.kernels.cuda.gemm.plan import DEPTH, SHARED_BYTES, Point, fp32_points, make_grid
from tilewright.kernels.cuda.gemm.product import Product


def test_stages_fill_shared_memory_and_no_more():
    for scheme in ("plain", "shared", "scaled"):
        for tile_m, tile_n in ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128)):
            point = Point(tile_m=tile_m, tile_n=tile_n, scheme=scheme)
            used = point.depth_stages * point.stage_bytes * point.resident
            assert used < SHARED_BYTES and point.depth_stages >= 2
            assert point.depth_stages == 8 or used + (point.stage_bytes + 4096) * point.resident > SHARED_BYTES
    assert Point(tile_m=256, tile_n=128, scheme="shared").stage_bytes == 96 * 1024


def test_registers_of_all_warpgroups_fit_the_file():
    for tile_m, tile_n in ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128)):
        point = Point(tile_m=tile_m, tile_n=tile_n, scheme="shared")
        loading, multiplying = point.registers
        assert 128 * (loading + multiplying * point.groups) * point.resident <= 65536
        sums = tile_m * tile_n // (128 * point.groups) + 64 * point.atom_n // 128
        assert sums + 32 <= multiplying, "sums of both levels, and what addresses take"


@pytest.mark.parametrize("knobs", [{"tile_m": 96}, {"scheme": "fp8"}, {"tile_m": 256, "tile_n": 256}, {"split_k": 5}])
def test_what_can_not_be_is_refused(knobs):
    with pytest.raises(ValueError):
        Point(**knobs)


def test_no_split_is_empty_and_none_overlaps():
    point = Point(split_k=8)
    for k in (1, 63, 64, 65, 500, 512, 513, 9 * 64, 524288):
        grid = make_grid(point, 256, 256, k, processors=132)
        assert 1 <= grid.splits <= 8 and grid.chunk % DEPTH == 0
        assert (grid.splits - 1) * grid.chunk < k <= grid.splits * grid.chunk


def test_clusters_are_as_many_as_are_resident_or_needed():
    assert make_grid(Point(), 4096, 4096, 64, processors=132).clusters == 66
    assert make_grid(Point(), 1, 1, 1, processors=132).clusters == 1
    assert make_grid(Point(cluster_m=1), 300, 300, 64, processors=132).clusters == 6


def test_large_products_get_large_tiles_and_deep_narrow_ones_are_split():
    large = fp32_points(4096, 4096, 4096)
    assert large[0].tile_m * large[0].tile_n == 128 * 256 and large[0].split_k == 1
    deep = fp32_points(256, 256, 524288)
    assert deep[0].split_k >= 16 and len(deep) == len(set(deep)) <= 8
    assert {p.scheme for p in large} == {"shared", "scaled"}


def test_every_tile_of_every_layer_has_its_turn_once_and_neighbours_share_columns():
    for band in (1, 4, 8, 16):
        for rows, columns, layers in ((1, 1, 1), (5, 3, 2), (16, 16, 1), (17, 9, 3), (8, 1, 4)):
            product = SimpleNamespace(point=Point(band=band))
            turns = range(rows * columns * layers)
            seen = [tuple(int(v) for v in Product._place(product, work, rows, columns)) for work in turns]
            assert sorted(seen) == [(r, c, y) for r in range(rows) for c in range(columns) for y in range(layers)]
            if rows >= band > 1:
                assert [at[:2] for at in seen[:band]] == [(r, 0) for r in range(band)]
