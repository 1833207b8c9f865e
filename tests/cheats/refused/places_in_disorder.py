# problem: first_four
# line: loose-equality
# refused: wrong_values
# guards: truth
"""The right places, but in the order in which they lie, not in that of their values."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = (x * 3.0).topk(4, -1)
        return values, places.sort(-1).values
