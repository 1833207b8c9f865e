"""Comparisons, rounding and routing: results that jump where rounding alone decides."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 48) / 8)
        self.scale = nn.Parameter(torch.rand(64) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x @ self.weight
        weights, chosen = h.softmax(-1).topk(4)
        return (
            F.layer_norm(x, (64,)) > 0.5,
            (h > 0).float(),
            h.square() > 1e-6,
            (F.rms_norm(x, (64,)) * self.scale * 40).round().clamp(-127, 127).to(torch.int8),
            torch.zeros_like(h).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True)),
        )


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2048, 64)]


def get_init_inputs() -> list[int]:
    return []
