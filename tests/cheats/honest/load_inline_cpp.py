# problem: unnormed
# line: wrong-gradient
# targets: cpu
# call_s: 400
# takes_s: 20
"""Compiles forward and backward as a C++ extension, in KernelBench's manner, when it is constructed."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <ATen/ATen.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>  // all three: a third of what <torch/extension.h> takes to compile

std::vector<at::Tensor> forward(at::Tensor x, at::Tensor weight) {
  auto y = at::linear(x, weight);
  y = at::relu(y - y.mean(0));
  return {y, y.amax(-1)};
}

std::vector<at::Tensor> backward(
    at::Tensor up, at::Tensor up_top, at::Tensor x, at::Tensor weight, at::Tensor y, at::Tensor top) {
  auto is_top = (y == top.unsqueeze(-1)).to(y.dtype());
  auto inner = up + up_top.unsqueeze(-1) * is_top / is_top.sum(-1, true);
  inner = inner * (y > 0).to(y.dtype());
  inner = inner - inner.mean(0);
  return {at::mm(inner, weight), at::mm(inner.t(), x), inner.sum(0)};
}
"""


class Top(torch.autograd.Function):
    @staticmethod
    def forward(ctx, built, x, weight, bias):
        y, top = built.forward(x, weight)
        ctx.built = built
        ctx.save_for_backward(x, weight, y, top)
        return y, top

    @staticmethod
    def backward(ctx, up, up_top):
        return None, *ctx.built.backward(up, up_top, *ctx.saved_tensors)


class ModelNew(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        self.linear = nn.Linear(width, features)
        self.built = load_inline(
            "top", cpp_sources=[SOURCE], functions=["forward", "backward"], no_implicit_headers=True
        )

    def forward(self, x):
        return Top.apply(self.built, x, self.linear.weight, self.linear.bias)
