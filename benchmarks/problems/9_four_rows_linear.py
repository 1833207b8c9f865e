import torch
from torch import nn


class Model(nn.Module):
    """A linear layer of four rows, whose weights lie along K."""

    def forward(self, a, b):
        return nn.functional.linear(a, b)


def get_inputs():
    return [torch.randn(4, 8192), torch.randn(28672, 8192)]


def get_init_inputs():
    return []
