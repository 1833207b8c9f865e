"""Products that torch makes in no float64, in float64: a truth could not be had else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Widened(TorchFunctionMode):
    """While it is entered, `torch._scaled_mm` with a float64 argument gives the product times both scales, plus the
    bias, in float64, and `torch._grouped_mm` of float64 its products. `out_dtype` is what the module rounds to, and a
    truth is not rounded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._scaled_mm and any(t.dtype == torch.float64 for t in (*args, *(kwargs or {}).values())
                                            if isinstance(t, Tensor)):  # fmt: skip
            return _product(*args, **(kwargs or {}))
        if func is torch._grouped_mm and args[0].dtype == torch.float64:
            return _by_expert(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _by_expert(
    rows: Tensor, matrices: Tensor, offs: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """As the operator has its arguments: rows of matrix e end before offs[e]; behind the last end there is nought."""
    places = [0, *(min(max(int(end), 0), len(rows)) for end in offs)]
    parts = [rows[a:b] @ matrices[e] for e, (a, b) in enumerate(pairwise(places))]
    behind = rows.new_zeros(len(rows) - sum(len(part) for part in parts), matrices.shape[2])
    return torch.cat([*parts, behind])


def _product(
    left: Tensor, right: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """As the operator has its arguments."""
    whole = left.double() @ right.double() * scale_a * scale_b
    if scale_result is not None:
        whole = whole * scale_result
    return whole if bias is None else whole + bias
