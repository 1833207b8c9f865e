"""Four dense layers: every row takes far longer to compute than to compare."""

import torch
from torch import nn

CASES = [{"rows": 8192, "width": 2048}]
CPU_CASES = [{"rows": 2048, "width": 256}]


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def get_inputs(rows: int, width: int) -> list[torch.Tensor]:
    return [torch.rand(rows, width)]


def get_init_inputs(rows: int, width: int) -> list[int]:
    return [width]
