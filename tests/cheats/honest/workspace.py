# problem: norm
# line: stale-memory
"""Keeps a workspace between calls, and returns fresh memory."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if getattr(self, "space", None) is None or self.space.shape != x.shape:
            self.space = torch.empty_like(x)
        torch.mul(self.norm(x), self.scale, out=self.space)
        return nn.functional.gelu(self.space)
