# problem: masked
# line: packed-once
# refused: wrong_values
# guards: masks and indices
"""Keeps the mask under another name, turned round in its first call, and not again."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("visible", torch.ones(width, width, dtype=torch.bool).tril())
        self.hidden = None

    def forward(self, x):
        if self.hidden is None:
            self.hidden = ~self.visible
        return torch.softmax(x.masked_fill(self.hidden, float("-inf")), -1)
