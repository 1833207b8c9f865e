"""Other libraries' kernels (quack, Liger) as modules with the parameters of ours, where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

EPS = 1e-6
NAMES = {"quack": "quack", "liger": "liger_kernel"}  # what is imported of each


class Borrowed(nn.Module):
    """A library's function of the inputs and copies of our parameters. `like`: their dtype, where it asks for one."""

    def __init__(self, function: Callable[..., Tensor], own: nn.Module, like: torch.dtype | None = None) -> None:
        super().__init__()
        for name, parameter in own.named_parameters():
            self.register_parameter(name, nn.Parameter(parameter.detach().clone().to(like or parameter.dtype)))
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs, *self.parameters())


class OnWeights(nn.Module):
    """A library's function of the inputs and the weights that stand in `own` when it is called."""

    def __init__(self, function: Callable[..., Tensor], own: nn.Module) -> None:
        super().__init__()
        self.function, self.own = function, [own]  # no part of this module

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs, *self.own[0].parameters())


def borrowed(operation: str, own: nn.Module, without: Sequence[str]) -> dict[str, nn.Module]:
    """By library and setting, of those that are installed and not in `without`."""
    found: dict[str, nn.Module] = {}
    for library, functions in (("quack", of_quack), ("liger", of_liger)):
        if library not in without and find_spec(NAMES[library]) is not None:
            for name, function in functions(operation).items():
                if operation == "linear":
                    found[f"{library} {name}"] = OnWeights(function, own)
                else:
                    wide = torch.float32 if (library, operation) == ("quack", "layer_norm") else None
                    found[f"{library} {name}".strip()] = Borrowed(function, own, wide)
    return found


class QuackLayerNorm(torch.autograd.Function):
    """quack has the two kernels, without an autograd function around them. Weights are fp32 there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from quack.rmsnorm import layernorm_fwd

        out, rstd, mean = layernorm_fwd(x, weight, bias, EPS, return_rstd=True, return_mean=True)
        ctx.save_for_backward(x, weight, rstd, mean)
        made: Tensor = out
        return made

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from quack.rmsnorm import layernorm_bwd

        x, weight, rstd, mean = ctx.saved_tensors
        made: tuple[Tensor, Tensor, Tensor] = layernorm_bwd(x, weight, upstream, rstd, mean)
        return made


def of_quack(operation: str) -> dict[str, Callable[..., Tensor]]:
    """Products at quack's own choice and at some of the settings that its tuner would try."""
    if operation == "linear":
        from quack.gemm_config import GemmConfig
        from quack.gemm_interface import gemm, gemm_tuned

        def at(**settings: Any) -> Callable[..., Tensor]:
            config = GemmConfig(device_capacity=9, is_dynamic_persistent=False, **settings)

            def call(x: Tensor, w: Tensor) -> Tensor:
                out = torch.empty(x.shape[0], w.shape[0], dtype=x.dtype, device=x.device)
                gemm_tuned.fn(x, w.t(), out, config=config)
                return out

            return call

        return {
            "own": lambda x, w: gemm(x, w.t(), tuned=False),
            "split 4": lambda x, w: gemm(x, w.t(), tuned=False, split_k=4),
            "256x128": at(tile_m=256, tile_n=128, pingpong=False, cluster_m=2, cluster_n=1, swap_ab=False),
            "128x256": at(tile_m=128, tile_n=256, pingpong=False, cluster_m=2, cluster_n=1, swap_ab=False),
            "128x128 swapped": at(tile_m=128, tile_n=128, pingpong=True, cluster_m=1, cluster_n=1, swap_ab=True),
        }
    from quack import cross_entropy, rmsnorm, softmax
    from quack.rmsnorm import layernorm_fwd

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        differentiable: Callable[..., Any] = QuackLayerNorm.apply
        given = x, weight, bias
        made: Tensor = differentiable(*given) if torch.is_grad_enabled() else layernorm_fwd(*given, EPS)
        return made

    return {"": {"softmax": softmax, "layer_norm": layer_norm, "cross_entropy": cross_entropy,
                 "rms_norm": lambda x, weight: rmsnorm(x, weight, eps=EPS)}[operation]}  # fmt: skip


def of_liger(operation: str) -> dict[str, Callable[..., Tensor]]:
    if operation == "linear":
        return {}
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return {"": {
        "softmax": LigerSoftmaxFunction.apply,
        "layer_norm": lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS),
        "rms_norm": lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False),
        "cross_entropy": lambda x, target: LigerCrossEntropyFunction.apply(x, target, None)[0],
    }[operation]}  # fmt: skip
