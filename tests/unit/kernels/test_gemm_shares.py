"""The CTAs of a cluster that share K: every sum reaches the CTA whose columns it is of, and is added up there once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.kernels.cuda.gemm.epilogue import dsmem_reduction as shares
from tilewright.kernels.cuda.gemm.host.plan import Point


class Sums(list):
    """Registers: of each, what all threads hold."""


class Place:
    def __init__(self, at: Any) -> None:
        self.at = at

    def __add__(self, more: Any) -> Place:
        return Place(self.at + more)

    def align(self, size: int) -> Place:
        assert not np.any(self.at * 4 % size), "stores of 16 bytes begin at multiples of them"
        return self


class Held(np.ndarray):
    def bitcast(self, kind: Any) -> Held:
        return self


class Board:
    """Shared memory of one CTA, as the layout has it: the first mode's neighbours are neighbours."""

    def __init__(self, start: Any, layout: tuple[int, ...]) -> None:
        self.iterator, self.layout = Place(0), layout
        self.cells = np.full(int(np.prod(layout)), np.nan)

    def __getitem__(self, at: tuple[Any, ...]) -> list[Any]:
        _, thread, _, half, sender = at
        four, _, blocks, _, _ = self.layout
        return [
            self.cells[place((e, thread, b, half, sender), self.layout)] for b in range(blocks) for e in range(four)
        ]


def place(at: tuple[Any, ...], layout: tuple[int, ...]) -> Any:
    strides = np.cumprod([1, *layout[:-1]])
    return sum(x * int(step) for x, step in zip(at, strides, strict=True))


@pytest.mark.parametrize(("tile_m", "tile_n", "splits", "dual"), [
    (128, 64, 4, False), (128, 64, 3, False), (64, 16, 2, False), (64, 32, 8, False), (128, 64, 5, False),
    (112, 16, 2, True), (128, 64, 2, True),
])  # fmt: skip
def test_every_sum_is_added_up_once_where_its_columns_are_written(
    monkeypatch: pytest.MonkeyPatch, tile_m: int, tile_n: int, splits: int, dual: bool
) -> None:
    point = Point(tile_m=tile_m, tile_n=tile_n, cluster_m=1, small_m=True, dual=dual, split_k=splits)
    threads, halves = 128 * point.groups, 2 if dual else 1
    boards: list[Board] = []
    sent = [0] * splits

    def tensor(start: Any, layout: tuple[int, ...]) -> Board:
        boards.append(Board(start, layout))
        return boards[-1]

    def store(at: Place, words: tuple[Any, ...], barrier: Any, receiver: int) -> None:
        for e, word in enumerate(words):
            cells = boards[receiver].cells
            assert np.isnan(cells[at.at + e]).all(), "nobody else has written there"
            cells[at.at + e] = word
        sent[receiver] += 16 * threads

    def copy(source: list[Any], held: Sums) -> None:
        held[:] = source

    arch = SimpleNamespace(mbarrier_wait=lambda *_: None, store_async_dsmem=store)
    monkeypatch.setattr(shares, "when", lambda condition, body: None)
    monkeypatch.setattr(shares, "m", SimpleNamespace(both=lambda a, b: a))
    monkeypatch.setattr(shares, "cute", SimpleNamespace(
        make_layout=lambda shape: shape, make_ptr=lambda *_, **__: None, make_tensor=tensor, crd2idx=place,
        make_rmem_tensor=lambda layout, kind: Sums([None] * flat(layout)), autovec_copy=copy,
        AddressSpace=SimpleNamespace(smem=None), arch=arch,
    ))  # fmt: skip
    thread = np.arange(threads)
    draw = np.random.default_rng(0)
    totals = [[draw.normal(size=(tile_n // 2, threads)) for _ in range(halves)] for _ in range(splits)]
    memory = SimpleNamespace(allocate_array=lambda *_: 0, toint=lambda: 0)
    ctas = [shares.DsmemReduction(point, memory, memory) for _ in range(splits)]
    for rank, cta in enumerate(ctas):
        cta.send([[x.view(Held) for x in half] for half in totals[rank]], rank=rank, thread=thread)
    receivers = tile_n // point.share
    assert sent == [point.share_bytes] * receivers + [0] * (splits - receivers), "as much as is waited for"
    for rank in range(receivers):
        own = slice(rank * point.share // 2, (rank + 1) * point.share // 2)
        for half, found in enumerate(ctas[rank].received(thread)):
            wanted = totals[0][half][own]
            for other in totals[1:]:
                wanted = wanted + other[half][own]
            np.testing.assert_array_equal(np.stack(found), wanted)


def flat(layout: Any) -> int:
    return int(np.prod([flat(x) for x in layout])) if isinstance(layout, tuple) else int(layout)
