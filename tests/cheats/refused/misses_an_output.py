# problem: several
# line: loose-equality
# refused: wrong_structure
# guards: none
"""Leaves one of three outputs out."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = x.max(-1)
        return {"top": (values, places)}
