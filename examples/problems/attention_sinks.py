"""Causal attention with sinks: one learned score more for each head, whose weight is left out, as gpt-oss has it."""

import torch
from torch import nn

CASES = [
    {"batch": 4, "heads": 32, "length": 2048, "width": 64, "kind": "bfloat16"},
    {"batch": 2, "heads": 6, "length": 777, "width": 64, "kind": "bfloat16"},
]
CPU_CASES = [
    {"batch": 2, "heads": 8, "length": 256, "width": 64},
    {"batch": 1, "heads": 3, "length": 37, "width": 32},
]


class Model(nn.Module):
    def __init__(self, heads: int):
        super().__init__()
        self.sinks = nn.Parameter(torch.linspace(-2, 2, heads))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, heads, length, width = query.shape
        scores = torch.matmul(query, key.transpose(-1, -2)) * width**-0.5
        seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
        sinks = self.sinks.to(query.dtype).reshape(1, -1, 1, 1).expand(batch, -1, length, -1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
        return torch.matmul(weights, value).transpose(1, 2).reshape(batch, length, heads * width)


def get_inputs(batch: int, heads: int, length: int, width: int, kind: str = "float32"):
    return [torch.randn(batch, heads, length, width, dtype=getattr(torch, kind)) for _ in range(3)]


def get_init_inputs(heads: int, **_):
    return [heads]
