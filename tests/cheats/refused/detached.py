# problem: trained
# line: wrong-gradient
# refused: no_gradient
# guards: none
"""The right result, without a graph behind it."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        with torch.no_grad():
            return nn.functional.gelu(self.linear(self.norm(x)))
