# problem: norm
# line: breaks-out
# refused: hung
# guards: none
# targets: cpu
"""Never returns."""

import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        while True:
            time.sleep(1)
