# problem: first_four
# line: loose-equality
"""Of equal values it names the last ones: torch's own order among them is nobody's promise."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = (x * 3.0).flip(-1).topk(4, -1)
        return values, x.shape[-1] - 1 - places
