# problem: matmul
# line: precision
# refused: wrong_values
# guards: precision, families
"""Partial sums kept in fp16."""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = (a[:, :64] @ b[:64]).half()
        for k in range(64, 384, 64):
            out += (a[:, k : k + 64] @ b[k : k + 64]).half()
        return out.float()
