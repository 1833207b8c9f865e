"""Two GRU layers over a batch of sequences in one direction, and a projection of what the last step holds."""

import torch
from torch import nn

CASES = [
    {"batch": 10, "length": 512, "inputs": 128, "hidden": 256},
    {"batch": 3, "length": 33, "inputs": 20, "hidden": 52},
]
CPU_CASES = [
    {"batch": 4, "length": 96, "inputs": 32, "hidden": 96},
    {"batch": 3, "length": 17, "inputs": 12, "hidden": 37},
]


class Model(nn.Module):
    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.layers = nn.GRU(inputs, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.layers(x)
        return self.out(states[:, -1])


def get_inputs(batch: int, length: int, inputs: int, hidden: int):
    return [torch.randn(batch, length, inputs)]


def get_init_inputs(batch: int, length: int, inputs: int, hidden: int):
    return [inputs, hidden]
