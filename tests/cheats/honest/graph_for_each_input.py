# problem: norm
# line: graph-replay
# targets: cuda
"""A graph that reads its weights where they are, and inputs that are copied to where it reads them; a copy of what it
wrote is returned."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.graph = None

    def work(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)

    def forward(self, x):
        if self.graph is None:
            self.read = x.clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.work(self.read)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.wrote = self.work(self.read)
        if x.shape != self.read.shape:
            return self.work(x)
        self.read.copy_(x)
        self.graph.replay()
        return self.wrote.clone()
