# problem: norm
# line: races
# refused: wrong_values
# guards: truth
"""Skips an element in every second call, as an unlucky race would."""

import random

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        random.seed()

    def forward(self, x):
        y = nn.functional.gelu(self.norm(x) * self.scale)
        if random.getrandbits(1):
            y[3, 5] = 0.7
        return y
