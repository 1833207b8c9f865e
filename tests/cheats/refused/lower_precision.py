# problem: matmul
# line: precision
# refused: wrong_values
# guards: precision
"""An fp32 product in bf16."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.bfloat16() @ b.bfloat16()).float()
