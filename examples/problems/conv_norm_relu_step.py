"""A step of training of a convolution, a batch norm and a ReLU: the block of a residual network (arXiv 1512.03385)."""

import torch
from torch import nn

MODE = "training"
CASES = [
    {"batch": 256, "channels": 128, "height": 56, "width": 56},
    {"batch": 5, "channels": 48, "height": 29, "width": 43},
]
CPU_CASES = [
    {"batch": 4, "channels": 96, "height": 56, "width": 56},
    {"batch": 2, "channels": 17, "height": 9, "width": 13},
]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def get_inputs(batch: int, channels: int, height: int, width: int):
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs(channels: int, **_):
    return [channels]
