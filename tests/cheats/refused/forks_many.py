# problem: norm
# line: breaks-out
# refused: hung, raised, out_of_memory
# guards: none
# targets: cpu
"""Starts two hundred processes and waits with them."""

import os
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        for _ in range(200):
            if os.fork() == 0:
                break
        time.sleep(600)
        return x
