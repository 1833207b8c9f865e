# problem: dropout
# line: partial
# refused: wrong_distribution
# guards: distribution, timed calls, echoes
"""Draws one row of a mask, and uses it for all."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x * 2.0 * (torch.rand(1, x.shape[1], device=x.device) >= 0.2) / 0.8
