# problem: matmul
# line: precision
# refused: wrong_values
# guards: precision
"""Each operand as a sum of two bf16 numbers: sixteen bits of twenty-four."""

from torch import nn


def _pair(x):
    high = x.bfloat16().float()
    return high, (x - high).bfloat16().float()


class ModelNew(nn.Module):
    def forward(self, a, b):
        (a1, a2), (b1, b2) = _pair(a), _pair(b)
        return a1 @ b1 + a1 @ b2 + a2 @ b1
