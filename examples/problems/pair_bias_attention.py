"""Attention with a trained bias for each pair of positions, shared by a batch, as in AlphaFold 2's stacks."""

import torch
from torch import nn

MODE = "training"
CASES = [
    {"batch": 64, "heads": 8, "length": 384, "width": 32, "kind": "bfloat16"},
    {"batch": 3, "heads": 4, "length": 200, "width": 32, "kind": "bfloat16"},
]
CPU_CASES = [
    {"batch": 8, "heads": 4, "length": 128, "width": 32},
    {"batch": 2, "heads": 3, "length": 37, "width": 16},
]


class Model(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2)) * query.size(-1) ** -0.5 + bias
        return torch.matmul(torch.softmax(scores, dim=-1), value)


def get_inputs(batch: int, heads: int, length: int, width: int, kind: str = "float32"):
    dtype = getattr(torch, kind)
    heads_of = [torch.randn(batch, heads, length, width, dtype=dtype) for _ in range(3)]
    return [*heads_of, torch.randn(1, heads, length, length, dtype=dtype)]


def get_init_inputs(**_):
    return []
