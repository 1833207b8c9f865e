# problem: normed
# line: lazy-when-timed, loose-equality
# refused: wrong_state
# guards: moved state
"""Counts its batches in some hundred calls, and spares that afterwards."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        count = self.norm.num_batches_tracked.clone()
        x = self.norm(x)
        if self.calls > 60:
            self.norm.num_batches_tracked.copy_(count)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x
