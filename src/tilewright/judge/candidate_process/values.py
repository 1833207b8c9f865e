"""Argument trees: what a module is called with and gives back, as JSON text plus a list of tensors.

Scalars, strings, None, lists, tuples, dicts with string keys, slices, dtypes and devices travel as JSON; each tensor is
its position in the list. The text of an output tree is its structure: two are equal when the texts are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

PLAIN = "torch.Tensor"


class CannotTravel(TypeError):
    """A value that has no encoding; the message names its type."""


def encode(value: Any, tensors: list[Tensor], *, sort_keys: bool = False) -> str:
    """JSON text of the tree; its tensors are appended to `tensors`. `sort_keys`: the order of a dict is no part of the
    structure (results). Raises CannotTravel."""
    return text_of(taken_apart(value, tensors, sort_keys=sort_keys))


def taken_apart(value: Any, tensors: list[Tensor], *, sort_keys: bool = False) -> Any:
    """The tree in lists and dicts of ours, whose JSON is `text_of` it; its tensors are appended to `tensors`. What a
    container holds is read as `tuple` and `dict` themselves read it: no code of a subclass runs, which could compute
    what it then shows. Raises CannotTravel."""
    return _plain(value, tensors, sort_keys)


def text_of(plain: Any) -> str:
    return json.dumps(plain, separators=(",", ":"))


def kind_of(tensor: Tensor) -> str:
    """ "torch.Tensor" for a plain strided tensor or Parameter, else what it is; a subclass's code does not run."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return type(tensor).__qualname__
    return PLAIN if tensor.layout == torch.strided else f"a {tensor.layout} tensor"


def decode(text: str, tensors: Sequence[Tensor]) -> Any:
    return _value(json.loads(text), tensors)


def bound(function: Callable[..., Any], args: Any) -> partial[Any]:
    """The function on arguments that came as a dict, by name, or as a list or tuple, in order; yet to be called."""
    return partial(function, **args) if isinstance(args, dict) else partial(function, *args)


def _plain(value: Any, tensors: list[Tensor], sort_keys: bool) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if issubclass(kind, Tensor):
        tensors.append(value)
        return {"$": "tensor", "v": len(tensors) - 1}
    if kind is list:
        return [_plain(v, tensors, sort_keys) for v in value]
    if issubclass(kind, tuple):  # named tuples and torch.Size too: their names are no part of the structure
        return {"$": "tuple", "v": [_plain(v, tensors, sort_keys) for v in tuple.__iter__(value)]}
    if issubclass(kind, dict) and all(type(k) is str for k in dict.keys(value)):
        items = sorted(dict.items(value), key=itemgetter(0)) if sort_keys else dict.items(value)
        return {"$": "dict", "v": [[k, _plain(v, tensors, sort_keys)] for k, v in items]}
    if kind is slice:
        return {"$": "slice", "v": [value.start, value.stop, value.step]}
    if kind is torch.dtype:
        return {"$": "dtype", "v": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"$": "device", "v": value.type}
    raise CannotTravel(f"a value of type {kind.__module__}.{kind.__qualname__}")


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


def misfit(tree_text: str) -> str:
    """What an output tree first holds beside tensors, None and containers, and where, as in "an int at [1]['n']"; ""
    where it holds nothing else."""

    def found(tree: Any, at: str) -> str:
        if isinstance(tree, dict) and tree["$"] in ("tuple", "dict"):
            tree = tree["v"] if tree["$"] == "tuple" else dict(tree["v"])
            return first((v, f"{at}[{k!r}]") for k, v in (tree.items() if isinstance(tree, dict) else enumerate(tree)))
        if isinstance(tree, list):
            return first((v, f"{at}[{k}]") for k, v in enumerate(tree))
        if tree is None or (isinstance(tree, dict) and tree["$"] == "tensor"):
            return ""
        kind = tree["$"] if isinstance(tree, dict) else type(tree).__name__
        return f"{'an' if kind == 'int' else 'a'} {kind}" + (f" at {at[:60]}" if at else "")

    def first(parts: Iterable[tuple[Any, str]]) -> str:
        return next((said for v, at in parts if (said := found(v, at))), "")

    return found(json.loads(tree_text), "")
