"""What the splitting warps of a woven product do, without a GPU: the order of items, and a warp in numpy."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fakes import gemm_model as model
from fakes import warp
from fakes.warp import Float16, Float32, Int32, Lanes, Uint32
from tilewright.kernels.cuda.gemm import finish, pair, woven
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


class Splitting(woven.Woven):
    """Its items over a matrix in numpy, one warp for all; each wait finds what it waits for."""

    def __init__(self, w):
        super().__init__(Point(scheme="scaled", woven=True), Finish("f32", vector=4))
        self.w = w
        self.chunks, self.all_groups = -(-w.shape[1] // woven.CHUNK), -(-w.shape[0] // woven.GROUP)
        self.groups_of_tile, self.together = 32, 32
        self.halves = np.zeros((2, *w.shape), np.float16)
        self.found = np.full((w.shape[0], self.chunks), 999)
        self.told = np.zeros(self.chunks, int)  # items whose exponents have changed

    def run(self):
        for item in range(self.all_groups * self.chunks):
            group, chunk = self._item_at(item)
            notes = warp.Cells(2, Int32, shared=False)
            for number in range(woven.GROUP // woven.TOGETHER):
                self._rows(warp.cute.arch.lane_idx(), Int32(group), Int32(chunk), notes, Int32(number))
            self.told[chunk] += notes[1].same

    def _read(self, row, step):
        return [Float32(self.w[row.cells, step.cells + e]) for e in range(4)]

    def _exponent(self, row, chunk):
        return Int32(self.found[row.cells, chunk.cells])

    def _note(self, row, chunk, exponent):
        assert warp._active[-1].sum() == 1
        self.found[row.same, chunk.same] = exponent.same

    def _write(self, at, quad, scales, odd):
        lanes = warp._active[-1]
        for plane, words in enumerate(pair.split_quad(quad, scales, odd[0], 11)):
            for e in range(4):
                held = np.ascontiguousarray(words[e // 2].cells).view(np.float16).reshape(32, 2)[:, e % 2]
                self.halves[plane, at[0].cells[lanes], at[1].cells[lanes] + e] = held[lanes]


@pytest.fixture
def on_a_warp(monkeypatch):
    cute = SimpleNamespace(
        make_rmem_tensor=warp.cute.make_rmem_tensor, arch=warp.cute.arch,
        size=lambda x, mode=(0,): x.shape[mode[0]] if isinstance(x, np.ndarray) else len(x.held),
    )  # fmt: skip
    for module in (pair, finish, woven):
        known = {"Float32": Float32, "Int32": Int32, "Uint32": Uint32, "Float16": Float16, "cute": cute, "m": warp.m,
                 "cutlass": SimpleNamespace(min=lowest, max=greatest), "when": warp.when}  # fmt: skip
        for name, fake in known.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, fake)

    def packed(low, high):
        with np.errstate(over="ignore"):
            both = np.stack([low.cells.astype(np.float16), high.cells.astype(np.float16)], 1)
        return Int32(np.ascontiguousarray(both).view(np.int32)[:, 0])

    def unpacked(both):
        halves = np.ascontiguousarray(both.cells).view(np.float16).reshape(32, 2).astype(np.float32)
        return Float32(halves[:, 0]), Float32(halves[:, 1])

    monkeypatch.setattr(pair, "_packed", packed)
    monkeypatch.setattr(pair, "_unpacked", unpacked)
    monkeypatch.setattr(pair, "_larger", lambda most, x: Float32(np.maximum(most.cells, np.abs(x.cells))))


def lowest(a, b):
    return a._with(b, np.minimum) if isinstance(a, Lanes) else min(a, b)


def greatest(a, b):
    return a._with(b, np.maximum) if isinstance(a, Lanes) else max(a, b)


def test_a_warp_splits_rows_under_exponents_that_only_sink(on_a_warp):
    rows, k = 13, 2 * woven.CHUNK + 16
    w = torch.randn(rows, k, generator=torch.Generator().manual_seed(0))
    w[1] *= 2.0**-140
    w[2, woven.CHUNK :] *= 2.0**40
    w[3, woven.CHUNK :] *= 2.0**-40
    w[4, : woven.CHUNK], w[5, woven.CHUNK :], w[6] = 0.0, 0.0, 0.0
    w[7, 3], w[7, 300], w[7, 301] = inf, -inf, nan
    w[8, 1], w[9] = 1e-30, w[9] * 2.0**120
    w[10, :: woven.CHUNK] = 2.0**12
    splitting = Splitting(w.numpy())
    with np.errstate(all="ignore"):
        splitting.run()
    before = torch.full((rows,), 160, dtype=torch.int32)
    changed = []
    for chunk in range(splitting.chunks):
        part = w[:, chunk * woven.CHUNK : (chunk + 1) * woven.CHUNK]
        largest = torch.where(part.isfinite(), part.abs(), 0.0).double().amax(1)
        asked = torch.where(largest > 0, (15 - torch.frexp(largest).exponent) // 8 * 8, 160)
        wanted = torch.minimum(before, asked)
        assert splitting.found[:, chunk].tolist() == wanted.tolist()
        assert bool((torch.ldexp(largest, wanted) < 2.0**15).all())
        hi, lo, _ = model.split(part, 11, wanted)
        place = slice(chunk * woven.CHUNK, chunk * woven.CHUNK + part.shape[1])
        for plane, found in zip((hi, lo), splitting.halves, strict=True):
            assert np.array_equal(found[:, place].astype(np.float64), plane.numpy(), equal_nan=True)
        changed.append(chunk > 0 and bool((wanted != before).any()))
        before = wanted
    assert changed == [False, True, False] and (splitting.told > 0).tolist() == changed
