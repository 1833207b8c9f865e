"""Loops over time of recurrent cells become one layer, with the products of all steps' inputs and outputs as one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fakes.program_interpreter import GraphRun, widened
from tilewright.facts.space import Space
from tilewright.frontend.rewrite.algebra import rewritten
from tilewright.frontend.rewrite.cells import LEAST_STEPS, looped_cells
from tilewright.frontend.trace import trace
from tilewright.fusion import match

STEPS, BATCH, INPUTS, HIDDEN = LEAST_STEPS + 3, 3, 5, 7


class Cells(nn.Module):
    """A cell written by hand, in a loop; `way`: how the loop differs from the plain one."""

    def __init__(self, way: str = "", inputs: int = INPUTS, hidden: int = HIDDEN) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.way = way
        self.inner, self.outer = nn.Linear(inputs + hidden, hidden), nn.Linear(hidden, 4)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        made = []
        for t in range(x.shape[1 if self.way == "batch first" else 0]):
            step = x[:, t] if self.way == "batch first" else x[-1 - t if self.way == "backwards" else t]
            parts = (h, step) if self.way == "state first" else (step, h)
            total = self.inner(torch.cat(parts, 1))
            h = total.relu() if self.way == "relu" else total.tanh()
            if self.way == "changed" and t == 4:
                h = h * 2
            made.append(h if self.way == "states" else self.outer(h))
        return torch.stack(made, dim=1 if self.way == "batch first" else 0)


def inputs(way: str) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    shape = (BATCH, STEPS, INPUTS) if way == "batch first" else (STEPS, BATCH, INPUTS)
    return torch.randn(shape, generator=drawn), torch.randn((BATCH, HIDDEN), generator=drawn)


@pytest.mark.parametrize("way", ["", "state first", "batch first", "relu", "states"])
def test_a_loop_is_one_layer_and_the_same_in_float64(way: str) -> None:
    module, args = Cells(way), inputs(way)
    made = looped_cells(trace(module, args, {}), 0)
    assert made is not None
    graph, step, _ = made
    assert step == f"{STEPS} steps of a cell: one recurrent layer"
    labels = [c.label for c in graph.calls if not c.view]
    assert labels.count("rnn_relu" if way == "relu" else "rnn_tanh") == 1
    assert labels.count("linear") == (0 if way == "states" else 1)
    found = match(graph, unsupported=lambda p: None, space=lambda p: Space(knobs=(), points=((),)))
    patterns = [p for p in found.patterns if p.kind == "recurrence"]
    assert len(patterns) == 1
    wide = module.double()
    truth = wide(*widened(args))
    for used in (patterns, []):
        torch.testing.assert_close(GraphRun(graph, wide, patterns=used)(*widened(args)), truth)


@pytest.mark.parametrize("way", ["backwards", "changed"])
def test_other_loops_are_left_alone(way: str) -> None:
    assert looped_cells(trace(Cells(way), inputs(way), {}), 0) is None


def test_it_is_declared_and_small_loops_are_not_worth_it() -> None:
    assert rewritten(trace(Cells(), inputs(""), {})) is None
    with torch.device("meta"):
        module, args = Cells("", 128, 128), (torch.zeros(STEPS, 64, 128), torch.zeros(64, 128))
    made = rewritten(trace(module, args, {}))
    assert made is not None and made.steps == (f"{STEPS} steps of a cell: one recurrent layer",)
