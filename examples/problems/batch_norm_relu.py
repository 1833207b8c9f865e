"""Batch norm with running statistics, shortcut and ReLU: the end of a ResNet block at inference (arXiv 1512.03385)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"batch": 128, "channels": 256, "size": 56}, {"batch": 5, "channels": 67, "size": 29}]
CPU_CASES = [{"batch": 4, "channels": 256, "size": 56}, {"batch": 2, "channels": 13, "size": 9}]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(channels))
        self.bias = nn.Parameter(0.1 * torch.randn(channels))
        self.register_buffer("mean", torch.randn(channels))
        self.register_buffer("var", 0.5 + torch.rand(channels))

    def forward(self, x: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
        return F.relu(F.batch_norm(x, self.mean, self.var, self.weight, self.bias, training=False) + shortcut)


def get_inputs(batch: int, channels: int, size: int):
    return [torch.randn(batch, channels, size, size), torch.randn(batch, channels, size, size)]


def get_init_inputs(channels: int, **_):
    return [channels]
