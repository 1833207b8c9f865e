import torch
from torch import nn


class Model(nn.Module):
    """Batch norm by running statistics, then a linear layer, in bf16."""

    def __init__(self, features, columns):
        super().__init__()
        self.norm = nn.BatchNorm1d(features).eval()
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2.0)
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.normal_()
        self.linear = nn.Linear(features, columns)
        self.bfloat16()

    def forward(self, x):
        return torch.relu(self.linear(self.norm(x)))


def get_inputs():
    return [torch.randn(16384, 4096, dtype=torch.bfloat16)]


def get_init_inputs():
    return [4096, 1024]
