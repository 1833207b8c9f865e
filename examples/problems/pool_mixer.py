"""The token mixer of PoolFormer: what a neighbourhood's average adds, scaled (Yu et al., arXiv 2111.11418)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"batch": 128, "channels": 96, "size": 112}, {"batch": 3, "channels": 7, "size": 61}]
CPU_CASES = [{"batch": 4, "channels": 96, "size": 56}, {"batch": 2, "channels": 5, "size": 15}]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = F.avg_pool2d(x, kernel_size=3, stride=1, padding=1, count_include_pad=False)
        return x + self.scale * (around - x)


def get_inputs(batch: int, channels: int, size: int):
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs(channels: int, **_):
    return [channels]
