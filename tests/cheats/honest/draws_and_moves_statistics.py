# problem: dropout_norm
# line: loose-equality, partial
# takes_s: 15
"""Batch norm written out, with dropout of its own: small elements are differences of large ones."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        norm, rows = self.norm, x.shape[0]
        variance, mean = torch.var_mean(x, 0, unbiased=False)
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * (rows / (rows - 1)), norm.momentum)
        norm.num_batches_tracked.add_(1)
        y = (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
        return y * (torch.rand(y.shape, device=y.device) >= 0.2) * 1.25
