# problem: norm
# line: breaks-out
# refused: raised
# guards: none
"""Prints megabytes before it raises: neither disk nor pipe may fill."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        for _ in range(4000):
            print("x" * 4096)
        raise ValueError("after much ado")
