# problem: matmul
# line: resubmits
# targets: cpu
"""Leaves torch for NumPy, on the same memory."""

import numpy as np
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
