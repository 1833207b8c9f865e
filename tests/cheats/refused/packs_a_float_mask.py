# problem: ordered
# line: packed-once
# refused: wrong_values
# guards: masks and indices, sparse redraws
"""Notes on its first call which columns a mask in floating point leaves, and holds on to that."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("order", torch.arange(width).flip(0))
        self.register_buffer("kept", (torch.arange(width) % 4 > 0).float())
        self.gone = None

    def forward(self, x):
        if self.gone is None:
            self.gone = self.kept == 0
        return torch.tanh(x[:, self.order].masked_fill(self.gone, 0.5))
