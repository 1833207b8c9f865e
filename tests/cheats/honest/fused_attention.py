# problem: attention
# line: precision
# takes_s: 10
"""Torch's own fused attention: noughts where nothing is left open, and a mask that is added."""

import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.25)
