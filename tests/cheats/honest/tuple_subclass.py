# problem: several
# line: loose-equality
"""The same structure, by other means."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        places = x.argmax(-1)
        values = x.gather(-1, places[:, None])[:, 0]
        return {"top": (values, places), "positive": x.gt(0).sum(-1, dtype=torch.int64)}
