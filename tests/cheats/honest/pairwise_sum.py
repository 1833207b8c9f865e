# problem: two_widths
# line: precision, fixed-shapes
"""A tree of partial sums."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.square()
        while y.shape[-1] > 1:
            if y.shape[-1] % 2:
                y = nn.functional.pad(y, (0, 1))
            y = y[:, 0::2] + y[:, 1::2]
        return y[:, 0]
