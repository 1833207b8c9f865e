"""Rotary position embedding on the two halves of each head, as in GPT-NeoX and Llama (Su et al., arXiv 2104.09864)."""

import torch
from torch import nn

CASES = [{"batch": 8, "heads": 32, "length": 4096, "width": 128}, {"batch": 3, "heads": 5, "length": 1009, "width": 70}]
CPU_CASES = [
    {"batch": 2, "heads": 8, "length": 1024, "width": 128},
    {"batch": 2, "heads": 3, "length": 37, "width": 10},
]


class Model(nn.Module):
    def __init__(self, length: int, width: int, base: float = 10000.0):
        super().__init__()
        angles = torch.arange(length)[:, None] * base ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * self.cos - second * self.sin, second * self.cos + first * self.sin), dim=-1)


def get_inputs(batch: int, heads: int, length: int, width: int):
    return [torch.randn(batch, heads, length, width)]


def get_init_inputs(length: int, width: int, **_):
    return [length, width]
