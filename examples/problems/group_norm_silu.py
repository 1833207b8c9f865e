"""Group norm, the time step's scale and shift, SiLU: how a diffusion UNet's residual block opens (arXiv 2105.05233)."""

import torch
import torch.nn.functional as F
from torch import nn

CASES = [{"batch": 32, "channels": 320, "size": 128}, {"batch": 3, "channels": 96, "size": 31}]
CPU_CASES = [{"batch": 2, "channels": 128, "size": 64}, {"batch": 2, "channels": 64, "size": 7}]


class Model(nn.Module):
    def __init__(self, channels: int, groups: int = 32):
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(channels))
        self.bias = nn.Parameter(0.1 * torch.randn(channels))

    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        normed = F.group_norm(x, self.groups, self.weight, self.bias)
        return F.silu(normed * (1 + scale[:, :, None, None]) + shift[:, :, None, None])


def get_inputs(batch: int, channels: int, size: int):
    return [torch.randn(batch, channels, size, size), 0.3 * torch.randn(batch, channels), torch.randn(batch, channels)]


def get_init_inputs(channels: int, **_):
    return [channels]
