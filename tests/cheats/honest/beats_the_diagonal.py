# problem: diagonal
# line: absurd-baseline
"""Scales rows where the reference multiplies by a diagonal matrix: right, and as fast as that deserves."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a[:, None] * b
