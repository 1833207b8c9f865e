"""What means cost that are merged of partial means, as norms and variances compute them (Welford, Chan et al.).

A step from the mean of a few elements to that of many rounds in the size of the former: where the few are one large
element, by that element's last bits, which are as many of the mean as there are elements. All elements of a row share
this error. Errors put into single operands, relative to them, do not reach it: a mean moves by them as by one part in
so many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MergedMeans:
    """Of one operation, in the shape of its groups: by how much its result and its mean move, by units of roundings.
    `result`, a view in which groups are broadcast, moves in units of `slope`; `mean` by the largest operand."""

    largest: Tensor
    mean: Tensor
    result: Tensor | None
    slope: Tensor | None

    def move(self, drawn: Tensor) -> None:
        """Move mean and result in place by these shares of the largest operand, one for each group."""
        off = drawn * self.largest
        self.mean.add_(off.reshape(self.mean.shape))
        if self.result is not None and self.slope is not None:
            self.result.sub_(off * self.slope)


def merged(name: str, args: Sequence[Any], result: Any) -> MergedMeans | None:
    """What an operation merges; None where it makes no means of its own, or of nothing."""
    found = _OPERATIONS.get(name)
    if found is None or not isinstance(args[0], Tensor) or args[0].numel() == 0:
        return None
    return found(args, result)


def _layer_norm(args: Sequence[Any], result: Any) -> MergedMeans:
    y, mean, rstd = result[:3]
    weight = args[2]
    dims = tuple(range(y.ndim - len(args[1]), y.ndim))
    return MergedMeans(_largest(args[0], dims), mean, y, rstd if weight is None else rstd * weight)


def _group_norm(args: Sequence[Any], result: Any) -> MergedMeans:
    (y, mean, rstd), weight = result[:3], args[1]
    batch, channels, groups = args[3], args[4], args[6]
    shape = (batch, groups, channels // groups, -1)
    x = args[0].reshape(shape)
    slope = rstd.reshape(batch, groups, 1, 1)
    if weight is not None:
        slope = slope * weight.reshape(1, groups, -1, 1)
    return MergedMeans(_largest(x, (2, 3)), mean, y.view(shape), slope)


def _batch_norm(args: Sequence[Any], result: Any) -> MergedMeans | None:
    (y, mean, rstd), weight = result[:3], args[1]
    if mean.numel() != y.shape[1]:  # the running statistics are used
        return None
    shape = (1, -1, *(1,) * (y.ndim - 2))
    slope = (rstd if weight is None else rstd * weight).reshape(shape)
    return MergedMeans(_largest(args[0], (0, *range(2, y.ndim))), mean, y, slope)


def _var_mean(args: Sequence[Any], result: Any) -> MergedMeans:
    mean = result[1]
    dims = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) and args[1] else range(args[0].ndim)
    return MergedMeans(_largest(args[0], tuple(dims)), mean, None, None)


def _largest(operand: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest of each group, in size; nought where one is no number."""
    size = operand.abs().amax(dims, keepdim=True) if dims else operand.abs()
    return torch.where(size < math.inf, size, 0.0)


_OPERATIONS: Mapping[str, Callable[[Sequence[Any], Any], MergedMeans | None]] = {
    "native_layer_norm": _layer_norm, "native_group_norm": _group_norm, "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm, "_batch_norm_with_update": _batch_norm, "cudnn_batch_norm": _batch_norm,
    "var_mean": _var_mean,
}  # fmt: skip
