"""Which CTA has what, of kernels that go over all of a batch or of a result: on the host, with integers that wrap."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.kernels.cuda.gemm.epilogue import epilogue as finish
from tilewright.kernels.cuda.gemm.epilogue.epilogue import Combine, EpilogueStore
from tilewright.kernels.cuda.gemm.fp32 import split
from tilewright.kernels.cuda.gemm.fp32.split import Chunk, Split, SplitPlan

MOST_BEHIND_X = 65535  # CTAs of a grid along y and z


class Recorded:
    """A kernel whose launch is looked at."""

    def launch(self, *, grid, **rest):
        self.grid = grid


@pytest.mark.parametrize(("major", "chunk"), [("k", 64), ("k", 4096), ("r", 64), ("r", 8192)])
@pytest.mark.parametrize("splits", [1, 3])
def test_every_chunk_of_every_matrix_is_split_once(monkeypatch, major, chunk, splits):
    made, rows, batch = Split(SplitPlan.for_chunk(major=major, wide=True, chunk=chunk)), 70, 5
    kernel = Recorded()
    made.launch(kernel, rows=rows, batches=batch, layers=batch * splits, stream=None)
    found = set()
    for number, part, last in itertools.product(*map(range, kernel.grid)):
        arch = SimpleNamespace(
            thread_idx=lambda: (0, 0, 0), block_idx=lambda at=(number, part, last): at, grid_dim=lambda: kernel.grid
        )
        fake = SimpleNamespace(arch=arch, size=lambda x, mode: x[mode[0]], ceil_div=lambda a, b: -(-a // b))
        monkeypatch.setattr(split, "cute", fake)
        monkeypatch.setattr(split, "cutlass", SimpleNamespace(min=min))
        own = Chunk((rows, splits * chunk), None, chunk, made.plan.ctas)
        assert own.layer == own.batch * splits + part and own.begin == part * chunk
        found.add((own.block, own.batch, own.layer))
    blocks = range(made.plan.ctas(rows))
    assert found == {(block, layer // splits, layer) for block in blocks for layer in range(batch * splits)}


def test_a_batch_may_be_larger_than_a_grid_is_along_y_and_z():
    for major in "kr":
        kernel = Recorded()
        Split(SplitPlan.for_chunk(major=major, wide=True, chunk=64)).launch(
            kernel, rows=64, batches=70000, layers=280000, stream=None
        )
        assert kernel.grid[1:] == [4, 1] and kernel.grid[0] >= 70000 and kernel.grid[0] % 70000 == 0
        assert max(kernel.grid[1:]) <= MOST_BEHIND_X


@pytest.fixture
def whole_numbers(monkeypatch):
    """numpy's, which warn where they wrap; and warnings are errors."""
    monkeypatch.setattr(finish, "Int32", np.int32)
    monkeypatch.setattr(finish, "Int64", np.int64)
    return Combine(EpilogueStore("f32", vector=1))


def test_the_sum_of_splits_goes_over_every_element_once(whole_numbers):
    rows, columns, batch = np.int32(37), np.int32(41), 3
    ctas = whole_numbers.ctas(rows, columns)
    places = [
        tuple(map(int, whole_numbers.place(np.int32(number), np.int32(thread), rows, columns)))
        for number in range(int(ctas) * batch)
        for thread in range(Combine.THREADS)
    ]
    written = [p for p in places if p[0] < rows]
    assert sorted(written) == sorted(itertools.product(range(37), range(41), range(batch)))


@pytest.mark.parametrize(("rows", "columns"), [(65536, 65536), (1 << 21, 1 << 12), (3, (1 << 31) - (1 << 16))])
def test_the_sum_of_splits_knows_its_place_beyond_2_to_the_31(whole_numbers, rows, columns):
    ctas = int(whole_numbers.ctas(np.int32(rows), np.int32(columns)))
    assert ctas == -(-rows * columns // 256)
    for inside, batch, thread in itertools.product((0, ctas // 2, ctas - 2, ctas - 1), (0, 7), (0, 255)):
        at = inside * 256 + thread
        found = whole_numbers.place(
            np.int32(batch * ctas + inside), np.int32(thread), np.int32(rows), np.int32(columns)
        )
        assert tuple(map(int, found)) == (at // columns, at % columns, batch)
