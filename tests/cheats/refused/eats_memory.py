# problem: norm
# line: breaks-out
# refused: out_of_memory
# guards: none
# targets: cpu
# call_s: 40
"""Takes memory until there is none."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        hoard = []
        while True:
            hoard.append(torch.ones(16 << 20))
