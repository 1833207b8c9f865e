# problem: cached
# line: loose-equality, caches
"""Attention with a cache, which it fills in its own order."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.key = nn.Linear(width, width)
        self.register_buffer("cache", torch.zeros(16 * rows, width), persistent=False)
        self.place = 0

    def forward(self, x):
        rows = x.shape[0]
        self.cache.narrow(0, self.place, rows).copy_(self.key(x))
        self.place += rows
        known = self.cache.narrow(0, 0, self.place)
        return torch.softmax((x * x.shape[1] ** -0.5) @ known.T, -1) @ known
