"""Recurrent layers as one operation: what torch's `lstm`, `gru`, `rnn_tanh` and `rnn_relu` compute of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Name of a cell -> (gates, states). Gates lie in weights in torch's order: i f g o of an LSTM, r z n of a GRU.
CELLS: Mapping[str, tuple[int, int]] = MappingProxyType({"lstm": (4, 2), "gru": (3, 1), "tanh": (1, 1), "relu": (1, 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceOp:
    """`layers` recurrent layers, each over the whole sequence that the one before gives, in one direction or in both.

    All operands are indexed and of `dtype`: the `sequence` (steps, batch, inputs); the initial `states`, each (layers *
    directions, batch, hidden): h, and of an LSTM c; the `weights`, layer by layer and in it direction by direction:
    (gates * hidden, inputs of the layer), (gates * hidden, hidden), and where `bias` holds two of (gates * hidden).
    `results`: the last layer's h of each step (steps, batch, directions * hidden), which is the domain, and the final
    states, of the shapes of the initial ones."""

    results: tuple[str, ...]
    cell: str
    sequence: str
    states: tuple[str, ...]
    weights: tuple[str, ...]
    layers: int
    directions: int
    hidden: int
    bias: bool
    dtype: str

    op = "recurrent layers"
    args = ()  # its operands are no values

    @property
    def result(self) -> str:
        """The last layer's h of each step."""
        return self.results[0]

    @property
    def gates(self) -> int:
        return CELLS[self.cell][0]

    @property
    def of_each(self) -> int:
        """Weights of one direction of one layer."""
        return 4 if self.bias else 2

    def weight_shapes(self, inputs: int) -> tuple[tuple[int, ...], ...]:
        """Of all `weights`, where the sequence has so many inputs."""
        rows = self.gates * self.hidden
        found: list[tuple[int, ...]] = []
        for layer in range(self.layers):
            width = self.directions * self.hidden if layer else inputs
            found += [(rows, width), (rows, self.hidden), *([(rows,)] * (2 if self.bias else 0))] * self.directions
        return tuple(found)

    def flops(self, steps: int, batch: int, inputs: int) -> int:
        """Of its products."""
        shapes = self.weight_shapes(inputs)
        return 2 * steps * batch * sum(s[0] * s[1] for s in shapes if len(s) == 2)
