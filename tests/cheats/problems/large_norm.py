"""As norm, and so large that a clock that lies is seen to lie."""

import torch
from torch import nn

CASES = [{"rows": 16384, "width": 4096}]
CPU_CASES = [{"rows": 1000, "width": 1024}]


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.norm(x) * self.scale)


def get_inputs(rows: int, width: int) -> list[torch.Tensor]:
    return [torch.rand(rows, width)]


def get_init_inputs(rows: int, width: int) -> list[int]:
    return [width]
