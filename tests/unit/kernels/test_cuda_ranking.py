"""The first of a row in order: the warp's networks, queue and bound carried out in numpy, held against torch's sort."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import warp
from tilewright.kernels.cuda.rows import ranking

pytestmark = pytest.mark.each(3)

LANES = np.arange(warp.WARP)


@pytest.fixture(autouse=True)
def on_the_fake(monkeypatch):
    for name in warp.NAMES:
        monkeypatch.setattr(ranking, name, getattr(warp, name))


def ranked(row: Tensor, count: int, op: str, *, each: int = 4) -> ranking.WarpRank:
    """What a warp keeps of a row, of which each lane has `each` neighbours at a time; the last batch is not whole."""
    order = ranking.KeyOrder(op=op, source="f32" if row.is_floating_point() else "i32")
    queue = warp.Cells(ranking.queue_keys(count), warp.Int64, shared=True)
    found = ranking.WarpRank(order, count, queue)
    kind = warp.Float32 if row.is_floating_point() else warp.Int32
    for start in range(0, len(row), 32 * each):
        places = [start + LANES * each + i for i in range(each)]
        inside = [warp.Boolean(p < len(row)) for p in places]
        values = [kind(row.numpy()[np.minimum(p, len(row) - 1)]) for p in places]
        whole = start + 32 * each <= len(row)
        found.offer(values, None if whole else inside, lambda i, places=places: warp.Int32(places[i]))
    found.finish()
    return found


def results(found: ranking.WarpRank) -> tuple[Tensor, Tensor]:
    keys = found.registers()
    values = [found.order.value(ranking.word_of(key)).cells for key in keys]
    places = [ranking.position_of(key).cells for key in keys]
    return tuple(torch.from_numpy(np.concatenate(parts)[: found.count].copy()) for parts in (values, places))


def holds(row: Tensor, count: int, op: str, found: ranking.WarpRank) -> None:
    """torch's values, and of equals the first: a stable sort."""
    values, places = results(found)
    wanted = row.sort(descending=op == "largest", stable=True)
    torch.testing.assert_close(values, wanted.values[:count], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, wanted.indices[:count])


@pytest.mark.parametrize("op", ["largest", "smallest"])
@pytest.mark.parametrize("count", [1, 7, 32, 33, 64])
def test_rows_of_all_kinds(count: int, op: str) -> None:
    draw = torch.Generator().manual_seed(count)
    noise = torch.randn(601, generator=draw)
    special = noise.clone()
    special[torch.randperm(601, generator=draw)[:40]] = torch.tensor([nan, inf, -inf, -0.0, 0.0] * 8)
    rows = [noise, noise.sort().values, noise.sort(descending=True).values, noise.round(), special, noise[:count],
            torch.zeros(200), torch.full((90,), nan), torch.full((90,), -inf), torch.randint(-9, 9, (300,)).int(),
            torch.tensor([-(2**31), 2**31 - 1] * 50).int(), torch.where(noise > 0, 0.0, -0.0)[:200]]  # fmt: skip
    for row in rows:
        holds(row, count, op, ranked(row, count, op))
    holds(special, count, op, ranked(special, count, op, each=16))
    holds(noise[:200], count, op, ranked(noise[:200], count, op, each=1))


@pytest.mark.parametrize("count", [5, 64])
def test_lists_of_two_warps_merge(count: int) -> None:
    row = torch.randn(900).round(decimals=2)
    first, second = (ranked(row[k * 450 : k * 450 + 450], count, "largest") for k in range(2))
    keys = np.concatenate([k.cells for k in second.registers()])
    keys = np.where(keys == ranking.NOTHING, keys, keys - 450)  # its positions follow those of the first
    cells = keys[::-1].reshape(-1, warp.WARP)
    first.merge([warp.Int64(c) for c in cells])
    holds(row, count, "largest", first)


def test_few_join_the_queue_once_the_list_is_full(monkeypatch) -> None:
    """Of 16384 elements in any order about 8 (1 + ln 2048) are ever among the first 8; the first batch may bring more,
    and what waits knows no closer bound."""
    joined = []
    enqueue = ranking.WarpRank._put

    def counted(self, cell, key):
        joined.append(warp._active[-1].sum())
        enqueue(self, cell, key)

    monkeypatch.setattr(ranking.WarpRank, "_put", counted)
    row = torch.randn(16384, generator=torch.Generator().manual_seed(3))
    holds(row, 8, "largest", ranked(row, 8, "largest", each=16))
    assert sum(joined) < 250
