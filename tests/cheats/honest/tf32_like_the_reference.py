# problem: convolution
# line: precision
# targets: cuda
"""A convolution as a product, in TF32 as the reference's own."""

import torch
from torch import nn

torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 64, 3, padding=1)

    def forward(self, x):
        columns = nn.functional.unfold(x, 3, padding=1)
        y = self.conv.weight.flatten(1) @ columns + self.conv.bias[:, None]
        return y.view(x.shape[0], 64, *x.shape[2:])
