# problem: matmul
# line: precision
# refused: wrong_values
# guards: precision, families
"""An fp32 product of operands rounded to fp16."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a.half().float() @ b.half().float()
