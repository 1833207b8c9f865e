# problem: norm
# line: graph-replay, packed-once
# refused: wrong_values
# guards: redraw
# targets: cuda
"""A CUDA graph over weights that were copied when it was captured."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.graph = None

    def forward(self, x):
        if self.graph is None:
            self._capture(x)
        self.static_in.copy_(x)
        self.graph.replay()
        return self.static_out.clone()

    def _capture(self, x):
        self.static_in = x.clone()
        self.frozen = self.norm.weight.detach().clone(), self.norm.bias.detach().clone(), self.scale.detach().clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._compute()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.static_out = self._compute()

    def _compute(self):
        weight, bias, scale = self.frozen
        return nn.functional.gelu(nn.functional.layer_norm(self.static_in, bias.shape, weight, bias) * scale)
