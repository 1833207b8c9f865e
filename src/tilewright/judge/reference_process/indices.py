"""Outputs that are indices: where an operation chose one of several equal values, any of them is right.

While the module runs in float64, `Watch` keeps what every index-giving operation chose from. An output that holds
exactly the indices which one of them gave is an index output; `short` looks up the values at other indices for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_POSITION = {  # packet: (place of the indices among the results, place of dim among the arguments)
    "argmax": (0, 1), "argmin": (0, 1), "max": (1, 1), "min": (1, 1), "topk": (1, 2), "kthvalue": (1, 2),
    "median": (1, 1), "nanmedian": (1, 1), "mode": (1, 1), "sort": (1, 1),
}  # fmt: skip
# Pools give positions in their flattened last dimensions, of which there are so many.
_POOLS = {
    "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3, "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3,
}  # fmt: skip
_ALL_DIFFERENT = ("topk", "sort")  # an element is chosen once


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """`indices` along `dim` of `operand`, both of one number of dimensions."""

    operand: Tensor
    indices: Tensor
    dim: int
    distinct: bool
    windows: tuple[_Window, ...] = ()  # of a pool: within these, and nowhere else


@dataclass(frozen=True, slots=True)
class _Window:
    """A pool's windows along one side of so many positions: of each the first position and what lies past its last."""

    length: int
    start: Tensor
    end: Tensor
    step: int

    def holds(self, position: Tensor, number: Tensor) -> Tensor:
        """Whether the position belongs to the window of that number."""
        start, end = self.start[number], self.end[number]
        return (position >= start) & (position < end) & ((position - start) % self.step == 0)


class Watch(TorchDispatchMode):
    """Keeps every choice whose indices number `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size = size
        self.choices: list[IndexChoice] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(getattr(func, "overloadpacket", None), "__name__", "")
        if name in _POSITION:
            self._note(name, func, {**_named(func, args), **(kwargs or {})}, result)
        if name in _POOLS and result[1].numel() == self._size:
            self._note_pool(_POOLS[name], {**_named(func, args), **(kwargs or {})}, result[1])
        return result

    def _note_pool(self, rank: int, given: dict[str, Any], indices: Tensor) -> None:
        operand = given["self"]
        windows = _windows(rank, given, operand.shape[-rank:], indices.shape[-rank:], indices.device)
        self.choices.append(IndexChoice(operand.flatten(-rank), indices.flatten(-rank), -1, False, windows))

    def _note(self, name: str, func: Any, given: dict[str, Any], result: Any) -> None:
        place, _ = _POSITION[name]
        indices = result if isinstance(result, Tensor) else result[place]
        operand = given["self"]
        if indices.dtype != torch.int64 or indices.numel() != self._size or given.get("stable"):
            return
        dim = given.get("dim", -1 if name in ("topk", "kthvalue", "sort", "mode", "median", "nanmedian") else None)
        if dim is None:
            operand, dim = operand.reshape(-1), 0
            indices = indices.reshape(1)
        elif indices.ndim == operand.ndim - 1:
            indices = indices.unsqueeze(dim)
        self.choices.append(IndexChoice(operand, indices, dim, name in _ALL_DIFFERENT))


def _windows(
    rank: int, given: dict[str, Any], lengths: Sequence[int], counts: Sequence[int], device: torch.device
) -> tuple[_Window, ...]:
    """A pool's windows, from the arguments that it was given."""

    def each(name: str, default: Sequence[int]) -> tuple[int, ...]:
        values = tuple(given.get(name) or default)
        return values * rank if len(values) == 1 else values

    found = []
    for side, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        number = torch.arange(count, device=device)
        if "kernel_size" not in given:
            ends = -(-(number + 1) * length // count)
            found.append(_Window(length, number * length // count, ends, 1))
            continue
        sizes = each("kernel_size", ())
        step = each("dilation", (1,))[side]
        start = number * each("stride", sizes)[side] - each("padding", (0,))[side]
        found.append(_Window(length, start, start + (sizes[side] - 1) * step + 1, step))
    return tuple(found)


def _outside(choice: IndexChoice, got: Tensor) -> bool:
    """Whether some index lies in no place of its own window."""
    if not choice.windows:
        return False
    number = torch.arange(got.shape[-1], device=got.device)
    outside = torch.zeros_like(got, dtype=torch.bool)
    for window in reversed(choice.windows):
        count = window.start.numel()
        outside |= ~window.holds(got % window.length, number % count)
        got, number = got // window.length, number // count
    return bool(outside.any())


def _named(func: Any, args: Any) -> dict[str, Any]:
    """Positional arguments by the names of the schema."""
    return {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}


def found_in(choices: Sequence[IndexChoice], truth: Tensor) -> int | None:
    """The number of the first choice that gave exactly these indices; None where none did."""
    flat = truth.reshape(-1).long()
    return next((n for n, c in enumerate(choices) if torch.equal(c.indices.reshape(-1), flat)), None)


def valid(choice: IndexChoice, got: Tensor) -> bool:
    """Whether all indices are in range, in their own window, and chosen once where that is asked for."""
    got = _shaped(choice, got)
    size = choice.operand.shape[choice.dim] if choice.operand.ndim else 1
    beyond = bool(((got < 0) | (got >= size)).any())
    return not (beyond or (choice.distinct and _repeats(got, choice.dim)) or _outside(choice, got))


def short(choice: IndexChoice, got: Tensor, best: Tensor) -> Tensor:
    """By how much the values at the indices `got`, which must be valid, differ from those at the `best`, flat; nought
    where they are the same."""
    operand = choice.operand.reshape(1) if choice.operand.ndim == 0 else choice.operand
    values, most = (operand.gather(choice.dim, _shaped(choice, at)).double() for at in (got, best))
    same = (values == most) | (values.isnan() & most.isnan())
    return torch.where(same, 0.0, most - values).nan_to_num(nan=math.inf).reshape(-1)


def _shaped(choice: IndexChoice, indices: Tensor) -> Tensor:
    return indices.long().reshape((1,) if choice.operand.ndim == 0 else choice.indices.shape)


def _repeats(indices: Tensor, dim: int) -> bool:
    ordered = indices.sort(dim).values
    return bool((ordered.diff(dim=dim) == 0).any())
