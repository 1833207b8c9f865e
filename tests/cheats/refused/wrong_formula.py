# problem: norm
# line: precision
# refused: wrong_values
# guards: precision
"""GELU by its tanh approximation: off by 1e-4."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale, approximate="tanh")
