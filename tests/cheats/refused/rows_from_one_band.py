# problem: dropout
# line: partial
# refused: wrong_distribution
# guards: distribution, echoes
"""Draws a band of a few rows' length, and cuts every row out of it somewhere."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows, width = x.shape
        band = torch.rand(7 * width + 13, device=x.device)
        starts = torch.randint(0, len(band) - width, (rows, 1), device=x.device)
        drawn = band[starts + torch.arange(width, device=x.device)]
        return x * (drawn < 0.8) * 2.5
