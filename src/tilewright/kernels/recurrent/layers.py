"""Recurrent layers one after another: what a layer's input gives all gates is one product over all steps, which torch
makes; a kernel does the steps.

    products[d] (steps * batch, gates * hidden) = sequence W_ih^T + b_ih
    kernel      h, c of each step of each direction d, from products[d], W_hh, b_hh and the states before
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..ops import DTYPES
from .shape import RecurrentShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One layer. Of each direction: `products` (steps * batch, gates * hidden), or in the order (batch, steps) where
    `batch_first` holds, `weights` (gates * hidden, hidden), and `biases`, of which there may be none. `states` are the
    initial ones, each (directions, batch, hidden). To be written, or None where nobody asks: `sequence` (steps, batch,
    directions * hidden) and `final`, of the shapes of `states`."""

    products: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    sequence: Tensor | None
    final: tuple[Tensor | None, ...]
    batch_first: bool

    @property
    def read(self) -> tuple[Tensor, ...]:
        return (*self.products, *self.weights, *self.biases, *self.states)

    @property
    def written(self) -> tuple[Tensor | None, ...]:
        return (self.sequence, *self.final)


class LayerKernel(Protocol):
    """Does the steps of one layer, in both of its directions."""

    def __call__(self, call: LayerCall, /) -> None: ...


def run_layers(shape: RecurrentShape, kernel: LayerKernel, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The results that are wanted, freshly allocated. `operands`: as `RecurrentShape.operands` counts them."""
    s = shape
    sequence, states, weights = operands[0], operands[1 : 1 + s.states], operands[1 + s.states :]
    device, dtype = sequence.device, DTYPES[s.dtype]
    state = (s.layers * s.directions, s.batch, s.hidden)
    final = [torch.empty(state, dtype=dtype, device=device) if wanted else None for wanted in s.wanted[1:]]
    states = tuple(x.contiguous() for x in states)
    of_each = 4 if s.bias else 2
    made: Tensor | None = None
    with torch.no_grad():
        for layer in range(s.layers):
            first = layer * s.directions
            own = [weights[(first + d) * of_each : (first + d + 1) * of_each] for d in range(s.directions)]
            batch_first = s.batch_first and layer == 0
            flat = (sequence.transpose(0, 1) if batch_first else sequence).reshape(s.steps * s.batch, -1)
            written = s.wanted[0] or layer < s.layers - 1
            width = s.directions * s.hidden
            made = torch.empty((s.steps, s.batch, width), dtype=dtype, device=device) if written else None
            kernel(LayerCall(
                products=tuple(linear(flat, w[0], w[2] if s.bias else None) for w in own),
                weights=tuple(w[1].contiguous() for w in own),
                biases=tuple(w[3].contiguous() for w in own) if s.bias else (),
                states=tuple(x[first : first + s.directions] for x in states), sequence=made,
                final=tuple(x if x is None else x[first : first + s.directions] for x in final),
                batch_first=batch_first,
            ))  # fmt: skip
            sequence = sequence if made is None else made
    return tuple(x for x in (made, *final) if x is not None)
