# problem: dropout
# line: partial
# refused: wrong_distribution
# guards: distribution
"""Drops a quarter where a fifth is asked for."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x * 2.0, 0.25)
