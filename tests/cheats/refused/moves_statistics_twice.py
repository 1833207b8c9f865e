# problem: trained
# line: loose-equality
# refused: wrong_state
# guards: moved state
"""Moves the running statistics twice a call."""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=None)
        self.linear = nn.Linear(width, features)

    def forward(self, x):
        self.norm(x)
        return nn.functional.gelu(self.linear(self.norm(x)))
