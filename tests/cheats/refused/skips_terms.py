# problem: matmul
# line: partial
# refused: wrong_values
# guards: truth
"""Leaves the last of 384 terms of every sum out."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a[:, :383] @ b[:383]
