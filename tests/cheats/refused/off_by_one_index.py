# problem: several
# line: loose-equality
# refused: wrong_values
# guards: truth
"""An index that is one too large in one row."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = x.max(-1)
        places[13] = (places[13] + 1) % x.shape[-1]
        return {"top": (values, places), "positive": (x > 0).sum(-1)}
