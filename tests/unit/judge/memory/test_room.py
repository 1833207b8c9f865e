"""What the judge does with its sets of inputs while cells are timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch

from tilewright.judge.memory.input_sets import InputSets
from tilewright.judge.wire import messages as wire


class _Pool:
    """Two sets of one input; and on how many threads they were asked for."""

    def __init__(self) -> None:
        self.sets = [torch.zeros(4, 3), torch.ones(4, 3)]
        self.threads: list[int] = []

    def tensor(self, number: int) -> torch.Tensor:
        self.threads.append(torch.get_num_threads())
        return self.sets[number]


def test_rows_change_places_on_one_thread() -> None:
    """Others would wait for more to do on the processors that the timed call, which comes next, is run on."""
    before, pool = torch.get_num_threads(), _Pool()
    arenas = SimpleNamespace(private=pool, settle=lambda: None)
    sets = cast(InputSets, SimpleNamespace(_arenas=arenas, _places=SimpleNamespace(pool=[(0,), (1,)])))
    torch.set_num_threads(2)
    try:
        InputSets.swap(sets, [wire.Swap(input=0, dim=0, slot=0, start=1, other=1, other_start=3, count=1)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(pool.threads) == {1}
    assert [s.sum(1).tolist() for s in pool.sets] == [[0, 3, 0, 0], [3, 3, 3, 0]]
