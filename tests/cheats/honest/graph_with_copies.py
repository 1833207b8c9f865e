# problem: norm
# line: graph-replay
# targets: cuda
"""A CUDA graph over buffers into which the input is copied in every call."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.graph = None

    def forward(self, x):
        if self.graph is None or x.shape != self.static_in.shape:
            self._capture(x)
        self.static_in.copy_(x)
        self.graph.replay()
        return self.static_out.clone()

    def _capture(self, x):
        self.static_in = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            nn.functional.gelu(self.norm(self.static_in) * self.scale)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.static_out = nn.functional.gelu(self.norm(self.static_in) * self.scale)
