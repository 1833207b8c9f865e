# problem: norm
# line: sequence
"""Tries two ways in its first calls and stays with the faster one: both are right."""

import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.times = []

    def forward(self, x):
        if len(self.times) < 4:
            way = len(self.times) % 2
            start = time.perf_counter()
            y = self._way(way, x)
            self.times.append((time.perf_counter() - start, way))
            return y
        return self._way(min(self.times)[1], x)

    def _way(self, way, x):
        if way:
            return nn.functional.gelu(self.norm(x) * self.scale)
        return nn.functional.gelu(
            nn.functional.layer_norm(x, x.shape[-1:]) * (self.norm.weight * self.scale) + self.norm.bias * self.scale
        )
