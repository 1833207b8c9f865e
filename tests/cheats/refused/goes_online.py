# problem: norm
# line: breaks-out
# refused: raised
# guards: none
# targets: cpu
"""Opens a connection to the outside."""

import socket

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        socket.create_connection(("1.1.1.1", 53), timeout=2).close()
        return nn.functional.gelu(self.norm(x) * self.scale)
