"""State that a forward writes in place: the fused module writes to the same memory, in an order that gives the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fakes import net
from tilewright.faces.examples import examples_of
from tilewright.faces.live import fallbacks

pytestmark = pytest.mark.each(3)

Forward = Callable[["Cached", Tensor], Tensor]


class Cached(nn.Module):
    """A cache of 9 places for rows of 8, another one, and a count of the places that are filled."""

    keys: Tensor
    others: Tensor
    seen: Tensor

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randn(2, 9, 8))
        self.register_buffer("others", torch.randn(2, 9, 8))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.linear = nn.Linear(8, 8)
        self.does = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


def copied(self: Cached, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1]) + self.seen
    self.seen.add_(x.shape[1])
    self.keys.index_copy_(1, places, torch.tanh(self.linear(x)))
    return torch.softmax(x @ self.keys.mT, -1)


def indexed(self: Cached, x: Tensor) -> Tensor:
    self.keys[:, torch.arange(x.shape[1]) + 1] = torch.tanh(x)
    return (self.keys * 2).sum(1)


def sliced(self: Cached, x: Tensor) -> Tensor:
    self.keys[:, 2 : 2 + x.shape[1]] = torch.tanh(x)
    return (self.keys * 2).sum(1)


def selected(self: Cached, x: Tensor) -> Tensor:
    self.keys[:, 4] = torch.tanh(x[:, 0])
    return (self.keys * 2).sum(1)


def twice(self: Cached, x: Tensor) -> Tensor:
    self.keys[:, 4] = torch.tanh(x[:, 0])
    between = torch.tanh(self.keys).sum(1)
    self.keys[:, 4:5] = between[:, None]
    return between + self.keys.sum(1)


def scattered(self: Cached, x: Tensor) -> Tensor:
    places = torch.zeros(2, x.shape[1], 8, dtype=torch.long) + self.seen
    self.keys.scatter_(1, places, torch.tanh(x))
    return self.keys.exp()


def read_before(self: Cached, x: Tensor) -> Tensor:
    old = torch.tanh(self.keys[:, 0:2])
    self.keys[:, 0:1] = x[:, :1]
    return old.sum(1) + self.keys.sum(1)


def view_read_late(self: Cached, x: Tensor) -> Tensor:
    old = self.keys.permute(0, 2, 1).clone()
    self.keys[:, 0:1] = x[:, :1]
    return torch.exp(old) @ torch.tanh(self.keys)


def read_by_what_is_written(self: Cached, x: Tensor) -> Tensor:
    self.keys[:, 0:1] = torch.tanh(self.keys.sum(1, keepdim=True)) + x[:, :1]
    return self.keys.exp()


def both_at_once(self: Cached, x: Tensor) -> Tensor:
    """One kernel could read the old and the new contents."""
    old = self.keys.clone()
    self.keys[:, 0:1] = x[:, :1]
    return torch.tanh(old * self.keys)


def given_back(self: Cached, x: Tensor) -> Tensor:
    self.keys[:, 0:1] = x[:, :1]
    return self.keys.clone()


def old_given_back(self: Cached, x: Tensor) -> Tensor:
    old = self.keys.clone()
    self.keys[:, 0:1] = torch.tanh(x[:, :1])
    return old


def exchanged(self: Cached, x: Tensor) -> Tensor:
    old = self.keys.clone()
    self.keys.copy_(self.others)
    self.others.copy_(old)
    return torch.tanh(x) + self.keys[:, :1]


def passed_on(self: Cached, x: Tensor) -> Tensor:
    self.others[:, 0:1] = torch.tanh(x[:, :1])
    self.keys.copy_(self.others)
    return torch.tanh(x)


IN_PLACE = (copied, indexed, sliced, selected, twice, scattered, read_by_what_is_written)
OTHERS = (read_before, view_read_late, both_at_once, given_back, old_given_back, exchanged, passed_on)


@pytest.mark.parametrize("does", [*IN_PLACE, *OTHERS])
def test_calls_in_a_row_give_and_leave_what_the_module_does(does: Forward, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain, x = Cached(does).eval(), torch.randn(2, 3, 8)
    mine = net.fused_as_given(tmp_path, copy.deepcopy(plain), examples_of((x,)))
    memory = mine.keys.data_ptr()
    results = []
    with torch.no_grad():
        for call in range(3):
            wanted, found = plain(x + call), mine(x + call)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(dict(mine.named_buffers()), dict(plain.named_buffers()))
            results.append((found, wanted))
    for found, wanted in results:  # a later call must not write to an earlier result
        torch.testing.assert_close(found, wanted)
    assert mine.keys.data_ptr() == memory and not fallbacks(mine)


@pytest.mark.parametrize("does", IN_PLACE)
def test_a_part_of_a_cache_is_written_without_a_copy_of_all_of_it(does: Forward, tmp_path: Path) -> None:
    net.fused_as_given(tmp_path, Cached(does).eval(), examples_of((torch.randn(2, 3, 8),)))
    text = (tmp_path / "candidate" / "model.py").read_text()
    assert "self.keys.copy_(" not in text
