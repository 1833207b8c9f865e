# cpu_bytes_per_s: 2e10
# cuda_bytes_per_s: 4e12
"""A sum from which everything cancels: the answer is zero, and only reading the input tells that it is finite."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x).sum(-1)


CASES = [{"rows": 1 << 14}]
CPU_CASES = [{"rows": 256}]


def get_inputs(rows: int) -> list[torch.Tensor]:
    return [torch.randn(rows, 4000)]


def get_init_inputs(rows: int) -> list[int]:
    return []
