# problem: norm
# line: patched-clock
"""Collects garbage where it is made, and reads clocks."""

import gc
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.then = 0
        gc.collect()

    def forward(self, x):
        self.then = time.perf_counter_ns()
        return nn.functional.gelu(self.norm(x) * self.scale)
