# problem: norm
# line: precision
# refused: wrong_values
# guards: precision
"""Half precision in one column of 257, which an average hides."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = nn.functional.gelu(self.norm(x) * self.scale)
        y[:, 100] = y[:, 100].half().float()
        return y
