"""The order in which a woven product's items are taken, without a GPU: its numbers alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tilewright.kernels.cuda.gemm import woven
from tilewright.kernels.cuda.gemm.finish import Finish
from tilewright.kernels.cuda.gemm.plan import Point


@pytest.mark.parametrize(("n", "chunks", "columns"), [(8192, 32, 17), (1000, 5, 2), (1, 1, 17), (777, 3, 1)])
def test_each_item_once_and_none_before_the_chunk_that_it_builds_on(monkeypatch, n, chunks, columns):
    monkeypatch.setattr(woven, "cutlass", SimpleNamespace(min=min))
    product = woven.Woven(Point(scheme="scaled", woven=True), Finish("f32", vector=4))
    product.groups_of_tile, product.chunks, product.all_groups = 256 // woven.GROUP, chunks, -(-n // woven.GROUP)
    product.together = columns * product.groups_of_tile
    items = [product._item_at(item) for item in range(product.all_groups * chunks)]
    assert sorted(items) == [(group, chunk) for group in range(product.all_groups) for chunk in range(chunks)]
    turn = {item: number for number, item in enumerate(items)}
    for group, chunk in items:
        tile = group // product.groups_of_tile * product.groups_of_tile
        others = range(tile, min(tile + product.groups_of_tile, product.all_groups)) if chunk else ()
        assert all(turn[(other, chunk - 1)] < turn[(group, chunk)] for other in others)
    first = items[: min(product.together, product.all_groups)]
    assert all(chunk == 0 for _, chunk in first), "what is needed first comes first"
