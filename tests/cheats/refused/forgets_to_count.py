# problem: counting
# line: loose-equality
# refused: wrong_state
# guards: moved state
"""Takes the count of calls into account, and leaves it where it is."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x):
        return torch.tanh(self.linear(x)) * (1 + 1 / (self.calls + 1))
