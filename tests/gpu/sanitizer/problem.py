"""The sum of the squares of every row, as a column: what the candidates of this folder compute."""

import torch
from torch import nn

CASES = [{"rows": 4096, "width": 256}, {"rows": 33, "width": 256}]


class Model(nn.Module):
    def forward(self, x):
        return x.square().sum(-1, keepdim=True)


def get_inputs(rows, width):
    return [torch.rand(rows, width)]


def get_init_inputs(rows, width):
    return []
