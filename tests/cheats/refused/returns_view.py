# problem: clamp
# line: views
# refused: aliases_input
# guards: aliasing, held results, families
"""Gives the input back, under the same values."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.view_as(x)
