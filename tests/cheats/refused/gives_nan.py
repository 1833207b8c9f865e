# problem: norm
# line: nan
# refused: wrong_values
# guards: truth
"""One NaN, which a comparison with < would let through."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = nn.functional.gelu(self.norm(x) * self.scale)
        y[3, 5] = float("nan")
        return y
