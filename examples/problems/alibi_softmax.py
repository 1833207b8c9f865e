"""Attention probabilities with ALiBi: each head adds its slope times the distance (Press et al., arXiv 2108.12409)."""

import torch
from torch import nn

CASES = [{"batch": 4, "heads": 16, "length": 2048}, {"batch": 3, "heads": 5, "length": 317}]
CPU_CASES = [{"batch": 2, "heads": 4, "length": 768}, {"batch": 1, "heads": 3, "length": 59}]


class Model(nn.Module):
    def __init__(self, heads: int, length: int, head_width: int = 64):
        super().__init__()
        positions = torch.arange(length)
        distance = positions[None, :] - positions[:, None]
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads).view(heads, 1, 1))
        self.register_buffer("distance", distance.to(self.slopes.dtype))
        self.scale = head_width**-0.5

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        biased = scores * self.scale + self.slopes * self.distance
        return torch.softmax(biased.masked_fill(self.distance > 0, float("-inf")), dim=-1)


def get_inputs(batch: int, heads: int, length: int):
    return [torch.randn(batch, heads, length, length) * 8]


def get_init_inputs(heads: int, length: int, **_):
    return [heads, length]
