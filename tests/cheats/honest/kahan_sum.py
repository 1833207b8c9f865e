# problem: two_widths
# line: precision, fixed-shapes
"""Sums one column after the other, with compensation."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        total = torch.zeros(x.shape[0], device=x.device)
        lost = torch.zeros_like(total)
        for column in x.square().unbind(-1):
            wanted = column - lost
            bigger = total + wanted
            lost = (bigger - total) - wanted
            total = bigger
        return total
