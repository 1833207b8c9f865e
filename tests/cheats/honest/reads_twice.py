# problem: norm
# line: lucky-timing
"""Reads its input once before it works, to have it in a cache: inside its own time."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x.sum()
        return nn.functional.gelu(self.norm(x) * self.scale)
