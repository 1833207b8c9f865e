"""Floats of eight bits: torch has next to no arithmetic with them, and its product of them takes nothing wider."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Widened(TorchFunctionMode):
    """While it is entered, `torch._scaled_mm` with a float64 argument gives the product times both scales, plus the
    bias, in float64: `out_dtype` is what the module rounds to, and a truth is not rounded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._scaled_mm and any(t.dtype == torch.float64 for t in (*args, *(kwargs or {}).values())
                                            if isinstance(t, Tensor)):  # fmt: skip
            return _product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _product(
    left: Tensor, right: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """As the operator has its arguments."""
    whole = left.double() @ right.double() * scale_a * scale_b
    if scale_result is not None:
        whole = whole * scale_result
    return whole if bias is None else whole + bias


def computable(tensor: Tensor) -> Tensor:
    """The same, in fp32 where torch computes nothing with its type: all floats of eight bits."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def within(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in this type of eight bits; what is too large for it becomes its largest number."""
    most = torch.finfo(dtype).max
    return torch.where(tensor.isfinite(), tensor.clamp(-most, most), tensor).to(dtype)
