"""What a cell says of results before they are read."""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.cell.subject import facts_of
from tilewright.cell.values import kind_of


def _shared(*tensors: Tensor) -> list[int]:
    return [f.aliases_output for f in facts_of(tensors, tuple(map(kind_of, tensors)), ())]


def test_an_output_that_shares_elements_with_an_earlier_one_is_known() -> None:
    x = torch.ones(4, 6)
    assert _shared(x, torch.ones(4, 6), x) == [-1, -1, 0]
    assert _shared(x[:3], x[2:], x.T) == [-1, 0, 1]


def test_parts_of_one_buffer_are_outputs_of_their_own() -> None:
    x = torch.ones(4, 6)
    assert _shared(x[:2], x[2:]) == [-1, -1]
    assert _shared(x[:, :3], x[:, 3:], x[:, ::2]) == [-1, -1, -1], "not dense: nothing is known of them"
    assert _shared(x[:0], x[:0]) == [-1, -1]
