import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    """A transformer's feed-forward: two linear layers with biases, and a GELU between them."""

    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def get_inputs():
    return [torch.randn(4096, 4096)]


def get_init_inputs():
    return [4096, 16384]
