"""The transition between two blocks of a DenseNet: a norm, half as many channels, half as many pixels a side (Huang et
al., arXiv 1608.06993). A 1x1 convolution and average pooling commute: a quarter of its work."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"batch": 256, "channels": 256, "size": 56}, {"batch": 3, "channels": 10, "size": 29}]
CPU_CASES = [{"batch": 8, "channels": 128, "size": 56}, {"batch": 2, "channels": 10, "size": 15}]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


def get_inputs(batch: int, channels: int, size: int):
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs(channels: int, **_):
    return [channels]
