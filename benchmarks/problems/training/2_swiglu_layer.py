import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    """Llama's feed-forward: down(silu(gate(x)) * up(x)), three linear layers without biases."""

    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def get_inputs():
    return [torch.randn(2048, 4096)]


def get_init_inputs():
    return [4096, 11008]
