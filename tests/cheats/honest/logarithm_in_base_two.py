# problem: logarithm
# line: nan
"""Logarithms by way of base two: special values fall out right."""

import math

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.log2(x) * math.log(2)
