"""Fake quantisation to int8, one scale for each output channel, for training aware of it (arXiv 1712.05877)."""

import torch
from torch import nn

CASES = [{"channels": 8192, "width": 16384}, {"channels": 1021, "width": 2049}]
CPU_CASES = [{"channels": 1024, "width": 4096}, {"channels": 37, "width": 147}]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("scale", 0.01 + 0.02 * torch.rand(channels, 1))
        self.register_buffer("zero_point", torch.randint(-20, 21, (channels, 1)).to(self.scale.dtype))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        level = torch.clamp(torch.round(weight / self.scale) + self.zero_point, -128, 127)
        return (level - self.zero_point) * self.scale


def get_inputs(channels: int, width: int):
    return [torch.randn(channels, width)]


def get_init_inputs(channels: int, **_):
    return [channels]
