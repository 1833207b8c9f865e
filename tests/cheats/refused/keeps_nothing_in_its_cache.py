# problem: cached
# line: loose-equality
# refused: wrong_state
# guards: moved state
"""Reads its cache and writes nothing to it; the next call would miss what this one has seen."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.key = nn.Linear(width, width)
        self.register_buffer("cache", torch.zeros(16 * rows, width), persistent=False)
        self.place = 0

    def forward(self, x):
        known = torch.cat([self.cache[: self.place], self.key(x)])
        self.place += x.shape[0]
        return torch.softmax(x @ known.T / x.shape[1] ** 0.5, -1) @ known
