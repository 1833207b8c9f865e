"""Recurrent layers on CPUs, built and run here: against float64 over cells, layers, directions, layouts, odd sizes,
types and special values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fakes.fused import load_fused
from fakes.program_interpreter import GraphRun, widened
from fakes.realisers import CPU, cpu
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.graph import Graph
from tilewright.realise.realiser import Fit, Refused
from tilewright.realise.recurrent import cpu as recurrent

ALLOWED = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class Layers(nn.Module):
    def __init__(self, kind: str, inputs: int, hidden: int, taken: str = "", **options: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = getattr(nn, kind)(inputs, hidden, **options)
        self.taken = taken

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        results = self.layers(x, states if len(states) > 1 else states[0]) if states else self.layers(x)
        return results[1] if self.taken == "states" else results[0] if self.taken == "sequence" else results


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def found(module: nn.Module, *args: Tensor) -> tuple[Graph, Pattern]:
    graph = trace(module, args, {})
    matched = match(graph, unsupported=cpu.unsupported, space=cpu.space)
    (pattern,) = (p for p in matched.patterns if p.kind == "recurrence")
    return graph, pattern


def holds(module: nn.Module, args: tuple[Tensor, ...], folder: Path, point: int = 0) -> None:
    """The kernel at this point is as near the truth as the dtype allows."""
    graph, pattern = found(module, *args)
    points = cpu.space(pattern.program).points
    made_of = load_fused(pattern.program, folder, points[point % len(points)], renderer=cpu)
    run = GraphRun(graph, module, patterns=[pattern], exact=False,
                   execute=lambda program, operands, **_: made_of.run(*operands))  # fmt: skip
    made, plain = tree_leaves(run(*args)), tree_leaves(module(*args))
    truth = tree_leaves(module.double()(*widened(args)))
    for one, own, right in zip(made, plain, truth, strict=True):
        assert one.dtype == args[0].dtype and one.shape == right.shape
        apart, theirs = ((x.double() - right).norm() / right.norm() for x in (one, own))
        assert apart < max(ALLOWED[one.dtype], 2 * theirs)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "relu"])
@pytest.mark.parametrize(
    ("sizes", "options", "taken"),
    [
        ((9, 5, 12, 40), {"num_layers": 2, "bidirectional": True}, ""),
        ((7, 10, 16, 32), {"batch_first": True}, "states"),
        ((4, 1, 3, 17), {"bias": False, "num_layers": 3}, "sequence"),
    ],
    ids=["both-directions", "batch-first", "no-bias"],
)
@pytest.mark.each(4)
def test_cells(
    kind: str, sizes: tuple[int, ...], options: dict[str, Any], taken: str, tmp_path: Path
) -> None:  # fmt: skip
    steps, batch, inputs, hidden = sizes
    nonlinearity = {"nonlinearity": "relu"} if kind == "relu" else {}
    module = Layers("RNN" if kind == "relu" else kind, inputs, hidden, taken, **options, **nonlinearity)
    x = rand(batch, steps, inputs) if options.get("batch_first") else rand(steps, batch, inputs)
    many = module.layers.num_layers * (2 if module.layers.bidirectional else 1)
    states = [rand(many, batch, hidden) for _ in range(2 if kind == "LSTM" else 1)]
    holds(module, (x, *states), tmp_path, point=len(kind))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types(dtype: torch.dtype, tmp_path: Path) -> None:
    holds(Layers("GRU", 8, 24).to(dtype), (rand(6, 3, 8, dtype=dtype),), tmp_path)


def test_threads_share_a_step(tmp_path: Path) -> None:
    """A step large enough for more threads than one; they wait for one another after each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        holds(Layers("LSTM", 16, 96), (rand(20, 13, 16),), tmp_path)
    finally:
        torch.set_num_threads(threads)


def test_infinities_and_nans_stay_where_they_begin(tmp_path: Path) -> None:
    """Of one row of the batch, from one step on; a row beside it knows nothing of them."""
    module = Layers("GRU", 4, 20, "sequence")
    x = rand(6, 2, 4)
    x[3, 1, 0] = torch.nan
    _, pattern = found(module, x)
    made = load_fused(pattern.program, tmp_path, renderer=cpu)
    weights = list(module.parameters())
    (y,) = made.run(x, torch.zeros(1, 2, 20), *weights)
    assert y[:3].isfinite().all() and y[:, 0].isfinite().all() and y[3:, 1].isnan().all()
    torch.testing.assert_close(y[:3], module(x)[:3])


def test_it_takes_operands_that_lie_in_other_ways(tmp_path: Path) -> None:
    module = Layers("LSTM", 6, 16, "sequence")
    x = rand(5, 3, 6)
    _, pattern = found(module, x)
    made = load_fused(pattern.program, tmp_path, renderer=cpu)
    h, c = rand(1, 3, 16), rand(1, 3, 16)
    weights = [w.detach().mT.contiguous().mT if w.ndim == 2 else w for w in module.parameters()]
    (y,) = made.run(x.permute(2, 1, 0).contiguous().permute(2, 1, 0), h.mT.contiguous().mT, c, *weights)
    torch.testing.assert_close(y, module(x, h, c))


def test_refusals() -> None:
    _, large = found(Layers("RNN", 2, 4), rand(3, 2, 2))
    assert isinstance(recurrent.fits(large.program, CPU), Fit)
    wide = trace(Layers("RNN", 1, (1 << 13) + 1), (rand(2, 1, 1),), {})
    matched = match(wide, unsupported=cpu.unsupported, space=cpu.space)
    assert any("hidden units" in line for line in matched.unmatched)
    pointwise = match(trace(nn.Softmax(-1), (rand(300, 300),), {}), unsupported=cpu.unsupported, space=cpu.space)
    answer = recurrent.fits(pointwise.patterns[0].program, CPU)
    assert isinstance(answer, Refused) and answer.foreign
