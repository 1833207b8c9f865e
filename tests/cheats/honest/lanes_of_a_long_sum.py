# problem: long_sum
# line: precision
"""Sums 64 lanes from end to end, each in its own accumulator."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        lanes = nn.functional.pad(x, (0, -x.shape[-1] % 64)).reshape(x.shape[0], -1, 64)
        return lanes.square().cumsum(1)[:, -1].sum(-1) / x.shape[-1]
