"""Recurrent layers step by step, in the type of what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tilewright.ir.recurrence import RecurrenceOp


def cell(name: str, at_input: Tensor, at_hidden: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The states after a step; both products with their biases, gates side by side; the states before."""
    h = before[0]
    if name == "lstm":
        i, f, g, o = (at_input + at_hidden).chunk(4, -1)
        c = f.sigmoid() * before[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if name == "gru":
        (ir, iz, i_n), (hr, hz, hn) = at_input.chunk(3, -1), at_hidden.chunk(3, -1)
        z = (iz + hz).sigmoid()
        return ((1 - z) * (i_n + (ir + hr).sigmoid() * hn).tanh() + z * h,)
    total = at_input + at_hidden
    return (total.tanh() if name == "tanh" else total.relu(),)


def layers(item: RecurrenceOp, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All `results`, by name."""
    sequence, weights = values[item.sequence], [values[n] for n in item.weights]
    final: list[list[Tensor]] = [[] for _ in item.states]
    for layer in range(item.layers):
        made = []
        for direction in range(item.directions):
            number = layer * item.directions + direction
            own = weights[number * item.of_each : (number + 1) * item.of_each]
            zero = torch.zeros(item.gates * item.hidden, dtype=sequence.dtype)
            b_ih, b_hh = own[2:] if item.bias else (zero, zero)
            states = tuple(values[n][number] for n in item.states)
            seen: list[Tensor] = []
            for x in sequence.flip(0) if direction else sequence:
                states = cell(item.cell, x @ own[0].T + b_ih, states[0] @ own[1].T + b_hh, states)
                seen.append(states[0])
            made.append(torch.stack(seen[::-1] if direction else seen))
            for one, state in zip(final, states, strict=True):
                one.append(state)
        sequence = torch.cat(made, -1)
    return dict(zip(item.results, (sequence, *map(torch.stack, final)), strict=True))
