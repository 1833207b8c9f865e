"""Flops of operators for which torch has no figure, or only one of some shapes: grouped products, and attention in
which several query heads share keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_ATTENTION = ("efficient_attention", "flash_attention", "cudnn_attention", "flash_attention_for_cpu")


def _by_expert(rows: Any, matrices: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of a product of which every row has a matrix of its own, given shapes."""
    return 2 * int(rows[0]) * int(rows[1]) * int(matrices[2])


def _attention(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of scores and of their product with the values, for each query head. Masks are not looked at, as by torch."""
    return int(2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of scores once more, and of the gradients of the weights, the values, the queries and the keys."""
    return int(2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1]))


# By the operator: its flops, given shapes. They stand before torch's own figures.
COUNTED: Mapping[Any, Callable[..., int]] = {
    _aten._grouped_mm: _by_expert,
    **{getattr(_aten, f"_scaled_dot_product_{name}"): _attention for name in _ATTENTION},
    **{getattr(_aten, f"_scaled_dot_product_{name}_backward"): _attention_backward for name in _ATTENTION},
}


def is_counted(packet: Any) -> bool:
    """Whether an operator makes products, whose flops are known."""
    return packet in COUNTED or packet in flop_registry


def flops_of(packet: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Of one call of an operator for which `is_counted`."""
    if packet not in COUNTED:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    shapes, named = tree_map_only(torch.Tensor, lambda t: t.shape, (args, kwargs))
    return COUNTED[packet](*shapes, **named)
