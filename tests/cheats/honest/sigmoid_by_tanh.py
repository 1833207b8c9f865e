# problem: tiny
# line: tiny
"""The sigmoid by way of the hyperbolic tangent."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return (0.5 * torch.tanh(0.5 * x) + 0.5) * 1e-6
