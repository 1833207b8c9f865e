# problem: logarithm
# line: nan
# refused: wrong_values
# guards: truth
"""NaN where minus infinity belongs: neither is finite."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.log(x)
        return torch.where(y.isinf(), torch.full_like(y, float("nan")), y)
