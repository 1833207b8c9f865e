# problem: ordered
# line: idle-weights
"""The same order by a gather, and the mask by a product."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("order", torch.arange(width).flip(0))
        self.register_buffer("kept", (torch.arange(width) % 4 > 0).float())

    def forward(self, x):
        return torch.where(self.kept == 0, 0.5, x.index_select(1, self.order)).tanh_()
