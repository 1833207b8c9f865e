# problem: matmul
# line: precision
# refused: wrong_values
# guards: precision
# targets: cuda
"""Allows TF32 where the user's flags forbid it."""

import torch
from torch import nn

torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
