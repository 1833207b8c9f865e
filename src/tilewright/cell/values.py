"""Argument trees: what a module is called with and gives back, as JSON text plus a list of tensors.

Scalars, strings, None, lists, tuples, dicts with string keys, slices, dtypes and devices travel as JSON; each tensor is
its position in the list. The text of an output tree is its structure: two are equal when the texts are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor


class CannotTravel(TypeError):
    """A value that has no encoding; the message names its type."""


def encode(value: Any, tensors: list[Tensor], *, sort_keys: bool = False) -> str:
    """JSON text of the tree; its tensors are appended to `tensors`. `sort_keys`: the order of a dict is no part of the
    structure (results). Raises CannotTravel."""
    return json.dumps(_plain(value, tensors, sort_keys), separators=(",", ":"))


def decode(text: str, tensors: Sequence[Tensor]) -> Any:
    return _value(json.loads(text), tensors)


def bound(function: Callable[..., Any], args: Any) -> partial[Any]:
    """The function on arguments that came as a dict, by name, or as a list or tuple, in order; yet to be called."""
    return partial(function, **args) if isinstance(args, dict) else partial(function, *args)


def _plain(value: Any, tensors: list[Tensor], sort_keys: bool) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"$": "tensor", "v": len(tensors) - 1}
    if type(value) is list:
        return [_plain(v, tensors, sort_keys) for v in value]
    if isinstance(value, tuple):  # named tuples and torch.Size too: their names are no part of the structure
        return {"$": "tuple", "v": [_plain(v, tensors, sort_keys) for v in value]}
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        keys = sorted(value) if sort_keys else list(value)
        return {"$": "dict", "v": [[k, _plain(value[k], tensors, sort_keys)] for k in keys]}
    if isinstance(value, slice):
        return {"$": "slice", "v": [value.start, value.stop, value.step]}
    if isinstance(value, torch.dtype):
        return {"$": "dtype", "v": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$": "device", "v": value.type}
    raise CannotTravel(f"a value of type {type(value).__module__}.{type(value).__qualname__}")


def _value(tree: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(tree, list):
        return [_value(v, tensors) for v in tree]
    if not isinstance(tree, dict):
        return tree
    body = tree["v"]
    match tree["$"]:
        case "tensor":
            return tensors[body]
        case "tuple":
            return tuple(_value(v, tensors) for v in body)
        case "dict":
            return {k: _value(v, tensors) for k, v in body}
        case "slice":
            return slice(*body)
        case "dtype":
            return getattr(torch, body)
        case "device":
            return torch.device(body)
    raise ValueError(f"unknown tag {tree['$']!r}")


def only_tensors(tree_text: str) -> bool:
    """Whether an output tree holds tensors and containers alone."""

    def check(tree: Any) -> bool:
        if isinstance(tree, list):
            return all(check(v) for v in tree)
        if not isinstance(tree, dict):
            return tree is None
        if tree["$"] == "tuple":
            return all(check(v) for v in tree["v"])
        if tree["$"] == "dict":
            return all(check(v) for _, v in tree["v"])
        return bool(tree["$"] == "tensor")

    return check(json.loads(tree_text))
