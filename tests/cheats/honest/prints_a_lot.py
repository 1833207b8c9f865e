# problem: norm
# line: breaks-out
"""Chatty, and right."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        for _ in range(50):
            print("x" * 4096)
        return nn.functional.gelu(self.norm(x) * self.scale)
