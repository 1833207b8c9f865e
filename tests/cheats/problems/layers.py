"""Four dense layers: every row takes far longer to compute than to compare."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(2048, 256)]


def get_init_inputs() -> list[int]:
    return [256]
