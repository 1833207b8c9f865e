"""Whether a module computes the same for all sizes of its inputs within given ranges: torch.export says so, which
refuses where Python, or an operator, decides by a size."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from ..facts.problem import OpenSize
from .eager import export
from .exported import quiet
from .recurrent import told_by_shape

_LINE = 300
_UNPROVEN = re.compile(
    r"Not all values of (?P<name>\w+) = (?P<source>.+?) in the specified range .*? satisfy the generated guard "
    r"(?P<guard>.+?)\.?"
)


def why_not_open(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any],
    dims_of: Callable[[Tensor], Mapping[int, OpenSize]],
) -> str:  # fmt: skip
    """Why `module(*args, **kwargs)` does not hold where the dimensions that `dims_of` names, of tensors among the
    arguments, have any size of the ranges; "" where it does."""
    found: dict[str, Any] = {}

    def dims(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        sizes = dims_of(leaf)
        return {d: found.setdefault(s.name, torch.export.Dim(s.name, min=s.low, max=s.high)) for d, s in sizes.items()}

    sizes = [
        s for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) for s in dims_of(leaf).values()
    ]
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    variadic = inspect.Parameter.VAR_KEYWORD
    shapes: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        mapped = pytree.tree_map(dims, value)
        shapes |= mapped if bound.signature.parameters[name].kind is variadic else {name: mapped}
    with warnings.catch_warnings(), torch.no_grad(), told_by_shape(), quiet():
        warnings.simplefilter("ignore")
        try:
            export(module, args, dict(kwargs), dynamic_shapes=shapes)
        except Exception as error:  # of many kinds
            lines = [line.strip(" -*") for line in str(error).splitlines() if line.strip().startswith("-")]
            if lines and all(_holds(line, {s.name: s for s in sizes}) for line in lines):
                return ""
            return f"torch.export: {type(error).__name__}: {' '.join(lines or str(error).split())}"[:_LINE]
    return ""


def _holds(violation: str, sizes: Mapping[str, OpenSize]) -> bool:
    """Whether a condition that torch.export could not prove of a size does hold throughout its range, tried for every
    value: it proves no `min(s, s * s) == s`."""
    found = _UNPROVEN.fullmatch(violation)
    if found is None or found["name"] not in sizes:
        return False
    size, condition = sizes[found["name"]], found["guard"].replace(found["source"], "size")
    names = {"min": min, "max": max, "Mod": int.__mod__, "Min": min, "Max": max, "__builtins__": {}}
    try:
        return all(eval(condition, names, {"size": value}) for value in range(size.low, size.high + 1))
    except Exception:  # another size, or another function, is in it
        return False
