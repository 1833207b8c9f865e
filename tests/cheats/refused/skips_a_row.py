# problem: norm
# line: partial
# refused: wrong_values
# guards: truth
"""Leaves one row of 96 at zero."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = nn.functional.gelu(self.norm(x) * self.scale)
        y[95] = 0
        return y
