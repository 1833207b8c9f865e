"""Linear attention with a gated state, step by step (arXiv 2312.06635): a matrix that decays and takes an outer
product at each position."""

import torch
from torch import nn

CASES = [
    {"batch": 32, "heads": 16, "length": 64, "width": 64},
    {"batch": 3, "heads": 5, "length": 37, "width": 64},
]
CPU_CASES = [
    {"batch": 8, "heads": 8, "length": 64, "width": 64},
    {"batch": 2, "heads": 3, "length": 9, "width": 16},
]


class Model(nn.Module):
    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gate: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        keep = torch.sigmoid(gate)
        outputs = []
        for t in range(query.size(2)):
            state = keep[:, :, t, :, None] * state + key[:, :, t, :, None] * value[:, :, t, None, :]
            outputs.append((query[:, :, t, :, None] * state).sum(2))
        return torch.stack(outputs, dim=2)


def get_inputs(batch: int, heads: int, length: int, width: int):
    query, key, value = (torch.randn(batch, heads, length, width) for _ in range(3))
    return [query, key, value, 2 + torch.randn(batch, heads, length, width), torch.randn(batch, heads, width, width)]


def get_init_inputs(**_):
    return []
