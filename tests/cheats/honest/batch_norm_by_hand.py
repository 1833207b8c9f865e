# problem: normed
# line: lazy-when-timed, caches, loose-equality
# takes_s: 12
"""Batch norm in training written out, which moves its statistics and its count as torch does."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        norm, rows = self.norm, x.shape[0]
        variance, mean = torch.var_mean(x, 0, unbiased=False)
        norm.running_mean.mul_(0.9).add_(mean, alpha=0.1)
        norm.running_var.mul_(0.9).add_(variance, alpha=0.1 * rows / (rows - 1))
        norm.num_batches_tracked += 1
        x = (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x
