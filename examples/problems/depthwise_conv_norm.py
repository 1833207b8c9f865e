"""A depthwise 7x7 convolution and a norm over channels: how a ConvNeXt block begins (arXiv 2201.03545)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [
    {"batch": 128, "channels": 192, "height": 56, "width": 56},
    {"batch": 5, "channels": 96, "height": 43, "width": 61},
]
CPU_CASES = [
    {"batch": 4, "channels": 96, "height": 56, "width": 56},
    {"batch": 2, "channels": 17, "height": 9, "width": 13},
]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(channels, 1, 7, 7) / 7)
        self.bias = nn.Parameter(torch.randn(channels) * 0.1)
        self.gain = nn.Parameter(1 + 0.1 * torch.randn(channels))
        self.shift = nn.Parameter(torch.randn(channels) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = F.conv2d(x, self.taps, self.bias, padding=3, groups=x.size(1))
        return F.layer_norm(mixed.permute(0, 2, 3, 1), (x.size(1),), self.gain, self.shift, 1e-6)


def get_inputs(batch: int, channels: int, height: int, width: int):
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs(channels: int, **_):
    return [channels]
