# problem: pair
# line: views
# refused: aliases_output
# guards: shared outputs
"""Gives one tensor for two outputs: who changes one changes the other."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return y, y.view(-1).view(x.shape)
