"""A gated linear recurrence, as in minGRU (arXiv 2410.01201): the loop over time, after the projections."""

import torch
from torch import nn

CASES = [{"batch": 512, "length": 128, "width": 1024}, {"batch": 37, "length": 65, "width": 501}]
CPU_CASES = [{"batch": 32, "length": 96, "width": 512}, {"batch": 3, "length": 21, "width": 67}]


class Model(nn.Module):
    def forward(self, gates: torch.Tensor, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        states = []
        for t in range(values.size(1)):
            share = torch.sigmoid(gates[:, t])
            state = (1 - share) * state + share * values[:, t]
            states.append(state)
        return torch.stack(states, dim=1)


def get_inputs(batch: int, length: int, width: int):
    return [torch.randn(batch, length, width), torch.randn(batch, length, width), torch.randn(batch, width)]


def get_init_inputs(**_):
    return []
