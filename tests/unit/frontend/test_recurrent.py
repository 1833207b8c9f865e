"""Recurrent layers while a module is traced: what torch learns step by step is told, and is the same."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch._decomp import decomposition_table, decompositions
from torch._subclasses import FakeTensorMode

from tilewright.frontend import exported
from tilewright.frontend.recurrent import told_by_shape
from tilewright.frontend.trace import trace
from tilewright.frontend.writes import written

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.each(3)]


class First(nn.Module):
    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result, states = self.layer(x)
        return result[..., :1] + (states[1] if isinstance(states, tuple) else states).sum()


LAYERS = {
    "gru": lambda: nn.GRU(3, 5, num_layers=2, batch_first=True),
    "lstm": lambda: nn.LSTM(3, 5, bidirectional=True),
    "projected lstm": lambda: nn.LSTM(3, 5, proj_size=2, batch_first=True),
    "rnn": lambda: nn.RNN(3, 5, num_layers=2, bidirectional=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("shape", [(7, 4, 3), (7, 3)], ids=["batch", "one row"])
@pytest.mark.parametrize("name", LAYERS)
def test_what_is_told_is_what_torch_finds(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = First(LAYERS[name]()).eval(), torch.randn(shape)
    with monkeypatch.context() as none:
        none.setattr(decompositions, "_rnn_helper", lambda *rest: pytest.fail("it goes through the steps"))
        told = trace(module, (x,), {})
    monkeypatch.setattr(exported, "told_by_shape", nullcontext)
    assert told == trace(module, (x,), {})


def test_afterwards_all_is_as_before() -> None:
    op = torch.ops.aten.gru.input
    before = decomposition_table[op], dict(op.py_kernels)
    with pytest.raises(ValueError, match="in the middle"), told_by_shape():
        assert decomposition_table[op] is not before[0]
        raise ValueError("in the middle")
    assert (decomposition_table[op], dict(op.py_kernels)) == before


def test_tensors_with_data_are_computed() -> None:
    module, x = First(LAYERS["gru"]()), torch.randn(7, 4, 3)
    with torch.no_grad():
        expected = module(x)
        with told_by_shape():
            assert torch.equal(module(x), expected)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_writes_are_looked_for_without_the_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a recurrent layer asks of tensors without data does not grow with the steps."""
    asked = itertools.count()  # which `written` can't look into
    kept = FakeTensorMode.__torch_dispatch__

    def counted(mode: FakeTensorMode, op: Any, *rest: Any) -> Any:
        next(asked)
        return kept(mode, op, *rest)

    monkeypatch.setattr(FakeTensorMode, "__torch_dispatch__", counted)
    found = []
    for steps in (4, 32):
        before = next(asked)
        assert written(First(LAYERS[name]()).eval(), (torch.randn(steps, 4, 3),), {}) == ""
        found.append(next(asked) - before)
    assert 1 < found[1] <= found[0] + 2, "28 more steps ask for hundreds"
