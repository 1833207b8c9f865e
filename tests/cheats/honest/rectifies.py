# problem: positive
# line: partial
"""A rectifier as a maximum."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clamp_min(0).mul_(2.0).add_(x.floor())
