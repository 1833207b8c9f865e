# problem: norm
# line: races
"""Adds up with atomics, in an order that nobody knows."""

import torch
from torch import nn


def _row_sums(x):
    parts = nn.functional.pad(x, (0, -x.shape[1] % 16)).reshape(x.shape[0], -1, 16).sum(-1)
    rows = torch.arange(x.shape[0], device=x.device).repeat_interleave(parts.shape[1])
    return torch.zeros(x.shape[0], device=x.device).index_add_(0, rows, parts.reshape(-1))[:, None]


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = _row_sums(x) / x.shape[1]
        centred = x - mean
        y = centred * torch.rsqrt(_row_sums(centred.square()) / x.shape[1] + self.norm.eps)
        return nn.functional.gelu((y * self.norm.weight + self.norm.bias) * self.scale)
