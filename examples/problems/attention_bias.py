"""Attention with an additive bias for each head and pair of positions, as in T5 (arXiv 1910.10683) and pair stacks."""

import torch
from torch import nn

CASES = [
    {"batch": 16, "heads": 16, "length": 1024, "width": 64, "kind": "bfloat16"},
    {"batch": 3, "heads": 5, "length": 333, "width": 64, "kind": "bfloat16"},
]
CPU_CASES = [
    {"batch": 4, "heads": 8, "length": 256, "width": 64},
    {"batch": 1, "heads": 3, "length": 37, "width": 32},
]


class Model(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2)) * query.size(-1) ** -0.5 + bias
        return torch.matmul(torch.softmax(scores, dim=-1), value)


def get_inputs(batch: int, heads: int, length: int, width: int, kind: str = "float32"):
    dtype = getattr(torch, kind)
    heads_of = [torch.randn(batch, heads, length, width, dtype=dtype) for _ in range(3)]
    return [*heads_of, torch.randn(heads, length, length, dtype=dtype)]


def get_init_inputs(**_):
    return []
