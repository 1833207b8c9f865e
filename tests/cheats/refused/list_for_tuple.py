# problem: several
# line: loose-equality
# refused: wrong_structure
# guards: exact structure
"""A list where the reference has a tuple."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = x.max(-1)
        return {"top": [values, places], "positive": (x > 0).sum(-1)}
