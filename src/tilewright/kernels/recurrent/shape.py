"""What recurrent layers are, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}  # of each cell, side by side in its weights, in torch's order


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """Layers over a sequence (steps, batch, inputs) of `dtype`, which is read with the batch outermost in memory where
    `batch_first` holds. `wanted`: which of the results are asked for: the last
    layer's sequence (steps, batch, directions * hidden), the final h of each layer and direction (layers * directions,
    batch, hidden), and of an LSTM the final c."""

    cell: str
    steps: int
    batch: int
    hidden: int
    layers: int
    directions: int
    bias: bool
    dtype: str
    batch_first: bool = False
    wanted: tuple[bool, ...]

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def states(self) -> int:
        """2 of an LSTM, h and c; 1 of others."""
        return 2 if self.cell == "lstm" else 1

    @property
    def outputs(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each result that is wanted."""
        sequence = (self.steps, self.batch, self.directions * self.hidden)
        state = (self.layers * self.directions, self.batch, self.hidden)
        shapes = (sequence, *([state] * self.states))
        return tuple((shape, self.dtype) for shape, wanted in zip(shapes, self.wanted, strict=True) if wanted)

    @property
    def operands(self) -> int:
        """The sequence, the initial states, and of each layer's directions two weights and perhaps two biases."""
        return 1 + self.states + self.layers * self.directions * (4 if self.bias else 2)
