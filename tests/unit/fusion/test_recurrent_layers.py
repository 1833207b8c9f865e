"""Recurrent layers are found in calls of torch's operators and say the same in float64; others are refused with a
reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes.program_interpreter import GraphRun, widened
from tilewright.facts import codec
from tilewright.facts.pattern import Pattern
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.alone import recurrence_in
from tilewright.ir.program import Program
from tilewright.ir.validation import validate

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 4, 6
CELLS = ("LSTM", "GRU", "RNN")


def no_space(program: Program) -> Space:
    return Space(knobs=(), points=((),))


class Layers(nn.Module):
    """Recurrent layers, and what is taken of their results."""

    def __init__(self, kind: str, taken: Callable[[Any], Any] = lambda results: results, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = getattr(nn, kind)(INPUTS, HIDDEN, **options)
        self.taken = taken

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        given = (x, states if len(states) > 1 else states[0]) if states else (x,)
        return self.taken(self.layers(*given))


def matched(module: nn.Module, *args: Tensor) -> tuple[Matched, Any]:
    graph = trace(module, args, {})
    return match(graph, unsupported=lambda program: None, space=no_space), graph


def found(module: nn.Module, *args: Tensor) -> Pattern:
    """The one recurrence, valid, and equal to the module in float64 where it stands in the graph."""
    found, graph = matched(module, *args)
    (pattern,) = (p for p in found.patterns if p.kind == "recurrence")
    validate(pattern.program)
    wide = module.double()
    truth, made = wide(*widened(args)), GraphRun(graph, wide, patterns=[pattern])(*widened(args))
    for a, b in zip(torch.utils._pytree.tree_leaves(made), torch.utils._pytree.tree_leaves(truth), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    return pattern


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": True, "num_layers": 2}, {"bidirectional": True, "num_layers": 3}, {"bias": False}],
    ids=["plain", "batch-first", "both", "no-bias"],
)
def test_each_cell_is_found_with_its_layers_and_directions(kind: str, options: dict[str, Any]) -> None:
    x = rand(BATCH, STEPS, INPUTS) if options.get("batch_first") else rand(STEPS, BATCH, INPUTS)
    program = found(Layers(kind, **options), x).program
    item = recurrence_in(program)
    assert item is not None
    assert item.layers == options.get("num_layers", 1) and item.directions == 1 + bool(options.get("bidirectional"))
    assert program.domain == (STEPS, BATCH, item.directions * HIDDEN)
    assert program.operands[0].order == ((1, 0, 2) if options.get("batch_first") else ())


def test_relu_initial_states_and_sequences_without_a_batch() -> None:
    assert found(Layers("RNN", nonlinearity="relu"), rand(STEPS, BATCH, INPUTS), rand(1, BATCH, HIDDEN))
    assert found(Layers("LSTM"), rand(STEPS, BATCH, INPUTS), rand(1, BATCH, HIDDEN), rand(1, BATCH, HIDDEN))
    assert found(Layers("GRU"), rand(STEPS, INPUTS), rand(1, HIDDEN))


def test_what_nothing_reads_is_no_output() -> None:
    x = rand(STEPS, BATCH, INPUTS)
    both = [o.name for o in found(Layers("LSTM"), x).program.outputs]
    last = [o.name for o in found(Layers("LSTM", lambda r: r[1][1]), x).program.outputs]
    sequence = [o.name for o in found(Layers("LSTM", lambda r: r[0][-1]), x).program.outputs]
    assert (both, last, sequence) == (["y", "h", "c"], ["c"], ["y"])


def test_training_without_dropout_draws_nothing() -> None:
    module = Layers("LSTM", num_layers=2).train()
    assert found(module, rand(STEPS, BATCH, INPUTS))
    assert found(Layers("LSTM", num_layers=2, dropout=0.5).eval(), rand(STEPS, BATCH, INPUTS))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Layers("LSTM", lambda r: r, proj_size=2), "projections"),
        (Layers("LSTM", num_layers=2, dropout=0.5).train(), "dropout between recurrent layers"),
        (Layers("GRU").double(), "other types"),
    ],
    ids=["projections", "dropout", "float64"],
)
def test_others_are_refused_in_a_sentence(module: nn.Module, why: str) -> None:
    x = rand(STEPS, BATCH, INPUTS)
    graph, _ = matched(module, x.double() if why == "other types" else x)
    assert not [p for p in graph.patterns if p.kind == "recurrence"]
    assert any(why in line for line in graph.unmatched)


def test_packed_sequences_are_refused_in_a_sentence() -> None:
    """torch.export takes none today: the call is written into a graph."""
    graph = trace(Layers("GRU"), (rand(STEPS, BATCH, INPUTS),), {})
    calls = tuple(replace(c, target="aten.gru.data") if c.label == "gru" else c for c in graph.calls)
    found = match(
        replace(graph, calls=calls),
        unsupported=lambda program: None,
        space=no_space,
    )
    assert not found.patterns and any("packed sequences" in line for line in found.unmatched)


def test_journals_hold_it_and_what_does_not_fit_is_refused() -> None:
    program = found(Layers("LSTM"), rand(STEPS, BATCH, INPUTS)).program
    item = recurrence_in(program)
    assert item is not None and codec.loads(codec.dumps(program)) == program
    small = replace(program.operands[1], shape=(1, BATCH, HIDDEN + 1))
    for wrong, why in (
        (replace(program, operands=(program.operands[0], small, *program.operands[2:])), "is not f32"),
        (replace(program, domain=(STEPS, BATCH, 2 * HIDDEN)), "is not what is made of"),
        (replace(program, body=(replace(item, cell="peephole"),)), "peephole"),
        (replace(program, body=(replace(item, states=item.states[:1]),)), "has 2 states"),
        (replace(program, outputs=(replace(program.outputs[1], shape=(1,)),)), "shape"),
    ):
        with pytest.raises(ValueError, match=why):
            validate(wrong)
