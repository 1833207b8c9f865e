# problem: running
# line: loose-equality
"""Moves the running mean in its own order of operations."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))

    def forward(self, x):
        self.running_mean.mul_(0.9).add_(x.sum(0), alpha=0.1 / x.shape[0])
        return x - self.running_mean
