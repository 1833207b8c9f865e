"""Normalisations: over layers, groups, instances and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from .lower import TORCH_DTYPES, Builder, Expr, Lowering, NotLowered, count
from .reduce import variance


def _scaled(x: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    result = x if weight is None else x * weight.wide()
    return result if bias is None else result + bias.wide()


def _layer_norm(b: Builder, x: Expr, normalized_shape: Sequence[int], weight: Expr | None = None,
                bias: Expr | None = None, eps: float = 1e-5, **_: Any) -> Any:  # fmt: skip
    dims = tuple(range(len(x.shape) - len(normalized_shape), len(x.shape)))
    values = x.wide()
    mean, var = variance(values, dims, keepdim=True)
    inverse = (var + eps).do("rsqrt")
    result = _scaled((values - mean) * inverse, weight, bias)
    return result if len(b.outs) == 1 else (result, mean, inverse)


def _rms_norm(b: Builder, x: Expr, normalized_shape: Sequence[int], weight: Expr | None = None,
              eps: float | None = None) -> Any:  # fmt: skip
    dims = tuple(range(len(x.shape) - len(normalized_shape), len(x.shape)))
    values = x.wide()
    if eps is None:
        eps = torch.finfo(TORCH_DTYPES[values.dtype]).eps
    mean = values.do("square").reduce("sum", dims, keepdim=True) / count(x, dims)
    inverse = (mean + eps).do("rsqrt")
    result = _scaled(values * inverse, weight, None)
    return result if len(b.outs) == 1 else (result, inverse)


def _channels(x: Expr | None, rank: int) -> Expr | None:
    """A vector over channels, shaped to meet (N, C, ...) of that rank."""
    return None if x is None else x.reshape((x.shape[0],) + (1,) * (rank - 2))


def _group_norm(b: Builder, x: Expr, num_groups: int, weight: Expr | None = None, bias: Expr | None = None,
                eps: float = 1e-5, **_: Any) -> Expr:  # fmt: skip
    values, rank = x.wide(), len(x.shape)
    groups = values.reshape((x.shape[0], num_groups, x.shape[1] // num_groups, *x.shape[2:]))
    mean, var = variance(groups, tuple(range(2, rank + 1)), keepdim=True)
    normal = ((groups - mean) * (var + eps).do("rsqrt")).reshape(x.shape)
    return _scaled(normal, _channels(weight, rank), _channels(bias, rank))


def _batch_dims(x: Expr) -> tuple[int, ...]:
    return (0, *range(2, len(x.shape)))


def _from_running(x: Expr, weight: Expr | None, bias: Expr | None, mean: Expr, var: Expr, eps: float) -> Expr:
    """Normalise by stored statistics."""
    rank = len(x.shape)
    inverse = (var.wide() + eps).do("rsqrt").reshape((x.shape[1],) + (1,) * (rank - 2))
    center = mean.wide().reshape((x.shape[1],) + (1,) * (rank - 2))
    return _scaled((x.wide() - center) * inverse, _channels(weight, rank), _channels(bias, rank))


def _from_batch(x: Expr, weight: Expr | None, bias: Expr | None, eps: float) -> tuple[Expr, Expr, Expr]:
    """Normalise by the batch's own statistics: result, mean and (biased) variance over channels."""
    rank, values = len(x.shape), x.wide()
    mean, var = variance(values, _batch_dims(x))
    center, inverse = _channels(mean, rank), _channels((var + eps).do("rsqrt"), rank)
    assert center is not None and inverse is not None
    return _scaled((values - center) * inverse, _channels(weight, rank), _channels(bias, rank)), mean, var


def _batch_norm(b: Builder, x: Expr, weight: Expr | None, bias: Expr | None, running_mean: Expr | None,
                running_var: Expr | None, training: bool, eps: float, **_: Any) -> Expr:  # fmt: skip
    if training:
        return _from_batch(x, weight, bias, eps)[0]
    if running_mean is None or running_var is None:
        raise NotLowered
    return _from_running(x, weight, bias, running_mean, running_var, eps)


def _functional(b: Builder, x: Expr, weight: Expr | None, bias: Expr | None, running_mean: Expr, running_var: Expr,
                eps: float, **given: Any) -> tuple[Expr | None, ...]:  # fmt: skip
    """In training the running statistics move towards the batch's by `momentum`, the variance without bias."""
    training, momentum = given.get("training", True), given["momentum"]
    unused: tuple[None, ...] = (None,) * (len(b.outs) - 3)
    if not training:
        return (_from_running(x, weight, bias, running_mean, running_var, eps), *unused, running_mean, running_var)
    result, mean, var = _from_batch(x, weight, bias, eps)
    n = count(x, _batch_dims(x))
    if n < 2:
        raise NotLowered
    new_mean = _moved(running_mean, mean, momentum)
    return (result, *unused, new_mean, _moved(running_var, var * (n / (n - 1)), momentum))


def _moved(old: Expr, new: Expr, momentum: float) -> Expr:
    return (old.wide() * (1 - momentum) + new * momentum).to(old.dtype)


def _instance_norm(b: Builder, x: Expr, weight: Expr | None, bias: Expr | None, running_mean: Expr | None,
                   running_var: Expr | None, use_input_stats: bool, eps: float, **_: Any) -> Expr:  # fmt: skip
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise NotLowered
        return _from_running(x, weight, bias, running_mean, running_var, eps)
    if running_mean is not None or prod(x.shape[2:]) < 2:
        raise NotLowered
    rank, values = len(x.shape), x.wide()
    mean, var = variance(values, tuple(range(2, rank)), keepdim=True)
    return _scaled((values - mean) * (var + eps).do("rsqrt"), _channels(weight, rank), _channels(bias, rank))


NORM_LOWERINGS: Mapping[str, Lowering] = {
    "layer_norm": _layer_norm, "native_layer_norm": _layer_norm, "rms_norm": _rms_norm, "_fused_rms_norm": _rms_norm,
    "group_norm": _group_norm, "batch_norm": _batch_norm,
    "native_group_norm": lambda b, x, group, **given: (_group_norm(b, x, group, **given), None, None),
    "_native_batch_norm_legit_functional": _functional, "_batch_norm_with_update_functional": _functional,
    "_native_batch_norm_legit_no_training": lambda b, x, weight, bias, running_mean, running_var, momentum, eps: (
        _from_running(x, weight, bias, running_mean, running_var, eps), None, None),
    "_native_batch_norm_legit": lambda b, x, weight, bias, training, momentum, eps: (
        _from_batch(x, weight, bias, eps)[0], None, None),
    "instance_norm": _instance_norm,
}  # fmt: skip
