"""A convolution, which PyTorch runs in TF32 on a GPU unless it is told not to."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(8, 32, 56, 56)]


def get_init_inputs() -> list[int]:
    return [32]
