# problem: one_stream
# line: one-stream
# refused: wrong_values
# guards: contents, redraw, families, stir
"""Takes the input for the weight, since one seed made both."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * x
