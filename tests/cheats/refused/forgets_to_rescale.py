# problem: dropout
# line: partial
# refused: wrong_distribution
# guards: distribution, timed calls
"""Drops, and does not make what it keeps larger."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 2.0 * (torch.rand_like(x) >= 0.2)
