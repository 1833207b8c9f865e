# problem: trained
# line: loose-equality, wrong-gradient
"""Batch norm written out; its statistics are new tensors under the old names, and of infinities it makes its own."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        norm, rows = self.norm, x.shape[0]
        variance, mean = torch.var_mean(x, 0, unbiased=False)
        with torch.no_grad():
            norm.num_batches_tracked = norm.num_batches_tracked + 1
            share = 1.0 / norm.num_batches_tracked.float()
            norm.running_mean = torch.lerp(norm.running_mean, mean, share)
            norm.running_var = torch.lerp(norm.running_var, variance * (rows / (rows - 1)), share)
        y = (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
        return nn.functional.gelu(self.linear(y))
