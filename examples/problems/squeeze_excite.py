"""Squeeze and excitation: channels weighted by a small network over their means (Hu et al., arXiv 1709.01507)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"batch": 64, "channels": 256, "size": 112}, {"batch": 3, "channels": 34, "size": 29}]
CPU_CASES = [{"batch": 4, "channels": 256, "size": 56}, {"batch": 2, "channels": 12, "size": 9}]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.reduce = nn.Linear(channels, max(channels // 16, 2))
        self.expand = nn.Linear(max(channels // 16, 2), channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.expand(F.relu(self.reduce(x.mean(dim=(2, 3))))))
        return x * gate[:, :, None, None]


def get_inputs(batch: int, channels: int, size: int):
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs(channels: int, **_):
    return [channels]
