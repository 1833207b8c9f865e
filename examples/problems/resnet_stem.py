"""The stem of a ResNet behind its convolution: batch norm, ReLU and max pooling (He et al., arXiv 1512.03385)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"batch": 256, "channels": 64, "size": 112}, {"batch": 5, "channels": 13, "size": 117}]
CPU_CASES = [{"batch": 8, "channels": 64, "size": 112}, {"batch": 2, "channels": 5, "size": 37}]


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)
        self.norm.running_mean.normal_(std=0.1)
        self.norm.running_var.uniform_(0.5, 1.5)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.norm(x)), kernel_size=3, stride=2, padding=1)


def get_inputs(batch: int, channels: int, size: int):
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs(channels: int, **_):
    return [channels]
