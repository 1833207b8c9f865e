# problem: two_widths
# line: fixed-shapes
# refused: raised
# guards: further cases, hidden cases
"""Refuses to work at any other shape than the one that everybody looks at."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.zeros(40, device=x.device)
        for start in range(0, 256, 64):
            out += x[:, start : start + 64].reshape(40, 64).square().sum(-1)
        return out
