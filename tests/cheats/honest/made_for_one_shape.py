# problem: matmul
# line: fixed-shapes
"""Works at one shape, and says so elsewhere."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        if a.shape != (128, 384) or b.shape != (384, 160) or not (a.is_contiguous() and b.is_contiguous()):
            raise ValueError("made for 128 x 384 times 384 x 160, dense")
        return a @ b
