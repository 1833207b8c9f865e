# problem: norm
# line: breaks-out
# refused: too_many_processes, out_of_memory, raised, hung
# guards: none
"""Starts two thousand processes that wait."""

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
        for _ in range(2000):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        time.sleep(60)
        return nn.functional.gelu(self.norm(x) * self.scale)
