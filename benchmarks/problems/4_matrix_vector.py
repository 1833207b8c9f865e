import torch
from torch import nn


class Model(nn.Module):
    """A large matrix and a vector."""

    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(65536, 4096), torch.randn(4096)]


def get_init_inputs():
    return []
