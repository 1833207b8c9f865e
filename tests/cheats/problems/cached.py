"""Attention with a cache: a buffer that checkpoints leave out, and a plain number for the next free place."""

import torch
from torch import nn

_PLACES = 16


class Model(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)
        self.register_buffer("cache", torch.zeros(_PLACES * rows, width), persistent=False)
        self.place = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        end = self.place + x.shape[0]
        self.cache[self.place : end] = self.key(x)
        self.place = end
        known = self.cache[:end]
        return torch.softmax(x @ known.T / x.shape[1] ** 0.5, -1) @ known


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(32, 64)]


def get_init_inputs() -> list[int]:
    return [32, 64]
