"""A tensor that is a plain attribute, and that each call replaces, is state that moves; afterwards it is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fakes import net
from tilewright.faces.examples import examples_of
from tilewright.faces.live import fallbacks
from tilewright.frontend.trace import trace


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.randn(4, 8)
        self.linear = nn.Linear(16, 8)

    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        if start is not None:
            self.hidden.copy_(start)
        self.hidden = self.hidden.to(x.device)
        self.hidden = torch.tanh(self.linear(torch.cat((x, self.hidden), 1)))
        return torch.softmax(self.hidden * 2.0, -1)


class Grows(Cell):
    def forward(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        self.hidden = torch.cat((self.hidden, x))
        return self.hidden.sum(0)


def test_what_a_call_leaves_is_an_update() -> None:
    cell = Cell().eval()
    hidden = cell.hidden
    graph = trace(cell, (torch.randn(4, 8),), {})
    (update,) = graph.updates
    states = {n.name: n.path for n in graph.nodes if n.op == "state"}
    assert states[update.target] == "hidden" and cell.hidden is hidden and not cell._buffers


def test_one_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"another shape|can.t be followed"):
        trace(Grows().eval(), (torch.randn(4, 8),), {})


@pytest.mark.slow
@torch.no_grad()
def test_the_fused_module_keeps_it_as_the_module_does(tmp_path: Path) -> None:
    ours, theirs = Cell().eval(), Cell().eval()
    theirs.load_state_dict(ours.state_dict())
    theirs.hidden = ours.hidden.clone()
    fast = net.fused_as_given(tmp_path, ours, examples_of((torch.randn(4, 8),)))
    for _ in range(3):
        x = torch.randn(4, 8)
        torch.testing.assert_close(fast(x), theirs(x))
        torch.testing.assert_close(fast.hidden, theirs.hidden)
    assert fallbacks(fast) == {}
