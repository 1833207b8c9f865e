"""What lanes give one another before they write: on numpy's arrays of a warp, one number a lane."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.kernels.cuda.gemm.epilogue import register_store as writes

LANES = np.arange(32)


def permuted(a, b, selector):
    """PTX's prmt of each lane."""
    held = a | b << 32
    return sum((held >> 8 * (selector >> 4 * byte & 7) & 0xFF) << 8 * byte for byte in range(4))


@pytest.fixture
def warp(monkeypatch):
    arch = SimpleNamespace(lane_idx=lambda: LANES, prmt=permuted, shuffle_sync_bfly=lambda x, offset: x[LANES ^ offset])
    monkeypatch.setattr(writes, "cute", SimpleNamespace(arch=arch))
    monkeypatch.setattr(writes, "Int32", lambda x: np.broadcast_to(np.asarray(x, np.int64), 32))
    monkeypatch.setattr(writes, "m", SimpleNamespace(select=np.where))


def elements(count):
    """Of so many pairs of columns, 8 apart, those of each lane: (pairs, 2, lanes); an element is its row and column."""
    row, first = LANES // 4, LANES % 4 * 2
    return np.array([[32 * row + 8 * q + first + e for e in range(2)] for q in range(count)]).astype(np.int64)


def placed(words, shift, *, each):
    """Rows x columns, as they come to lie: of `each` bytes."""
    rows = np.zeros((8, 32), np.int64)
    for lane in range(32):
        for i, word in enumerate(words):
            for j in range(4 // each):
                value = int(word[lane]) >> 8 * each * j & (1 << 8 * each) - 1
                rows[lane // 4, lane % 4 * 2 + int(shift[lane]) + 4 // each * i + j] = value
    return rows


def test_bytes_of_four_lanes_become_eight_neighbours(warp):
    words = [low | high << np.int64(8) for low, high in elements(4)]
    made, shift = writes.gathered(words)
    assert (placed(made, shift, each=1) == np.arange(256).reshape(8, 32)).all()


def test_pairs_of_two_lanes_become_four_neighbours(warp):
    made, shift = writes.exchanged([[low | high << np.int64(16)] for low, high in elements(2)])
    assert (placed(made, shift, each=2)[:, :16] == np.arange(256).reshape(8, 32)[:, :16]).all()
