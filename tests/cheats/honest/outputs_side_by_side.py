# problem: pair
# line: views, loose-equality
"""Two outputs in one buffer, one beside the other in every row, in a named tuple."""

from typing import NamedTuple

import torch
from torch import nn


class Both(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        left, right = torch.cat([y, y], -1).chunk(2, -1)
        return Both(right=right, left=left)
