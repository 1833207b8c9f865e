import torch
from torch import nn


class Model(nn.Module):
    """A batch of matrices and vectors."""

    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(64, 4096, 512), torch.randn(64, 512, 1)]


def get_init_inputs():
    return []
