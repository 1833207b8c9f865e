# problem: matmul
# line: precision
"""Each operand as a sum of three bf16 numbers: all of its bits, on units that know only bf16."""

from torch import nn


def _parts(x):
    high = x.bfloat16().float()
    middle = (x - high).bfloat16().float()
    return high, middle, (x - high - middle).bfloat16().float()


class ModelNew(nn.Module):
    def forward(self, a, b):
        (a1, a2, a3), (b1, b2, b3) = _parts(a), _parts(b)
        small = a1 @ b3 + a3 @ b1 + a2 @ b2
        return small + (a1 @ b2 + a2 @ b1) + a1 @ b1
