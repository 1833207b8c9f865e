# problem: maximum
# line: offset
# refused: wrong_values
# guards: precision, families
"""Forgets the column's offset on its input: every column gets column 0's maximum."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x[:, :, :1].max(dim=1).values.expand(-1, x.shape[2]).clone()
