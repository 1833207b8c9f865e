"""Stirring: before every timed call the slot's contents change a little, so that no call sees what an earlier one saw.

Rows of an input change places with the same rows of another slot: the values keep their range, indices stay valid,
and what depends on the place of a row (a triangle, a causal mask) stays where it is. Nothing is lost, as it would be
if rows were copied: the sets of inputs never grow alike. Inputs whose first dimension is equal (values and their mask,
samples and their labels) change the same rows. With one slot alone, rows change places within it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..wire import messages as wire

_SHARE = 16  # at most one row in so many changes in one call
_MOST_BYTES = 1 << 20  # and no more than this of an input, where a row is not larger


@dataclass(frozen=True, slots=True)
class _Group:
    """Inputs that change together: the extent of their row dimension, and (input, dimension) of each."""

    extent: int
    members: tuple[tuple[int, int], ...]
    most: int  # rows at a time


class Stirring:
    """Chooses swaps for inputs like the given set."""

    def __init__(self, inputs: Sequence[Tensor], *, slots: int, rng: random.Random) -> None:
        self._slots = slots
        self._rng = rng
        dims = [_row_dim(t) for t in inputs]
        whole = [i for i, t in enumerate(inputs) if not _rows_are_free(t, dims[i], alone=slots == 1)]
        self._wholes = tuple(i for i in whole if slots > 1)
        groups: dict[int, list[tuple[int, int]]] = {}
        for i, tensor in enumerate(inputs):
            if i not in whole:
                groups.setdefault(tensor.shape[dims[i]], []).append((i, dims[i]))
        has_floats = any(t.is_floating_point() or t.is_complex() for t in inputs)
        self._groups = tuple(
            _Group(extent, tuple(members), _most_rows(extent, [inputs[i] for i, _ in members]))
            for extent, members in groups.items()
            if not has_floats or any(inputs[i].is_floating_point() or inputs[i].is_complex() for i, _ in members)
        )

    @property
    def changes_rows(self) -> bool:
        """Whether calls see new contents; else sets change places as wholes at most."""
        return bool(self._groups)

    def swaps(self, slot: int) -> tuple[wire.Swap, ...]:
        """What shall change before the next call on this slot."""
        other = (slot + self._rng.randrange(1, self._slots)) % self._slots if self._slots > 1 else slot
        found = [swap for group in self._groups for swap in self._of_group(group, slot, other)]
        for i in self._wholes:
            if self._rng.random() < 0.5:
                found.append(wire.Swap(input=i, dim=-1, slot=slot, start=0, other=other, other_start=0, count=0))
        return tuple(found)

    def _of_group(self, group: _Group, slot: int, other: int) -> list[wire.Swap]:
        count = self._rng.randint(1, group.most)
        start = other_start = self._rng.randrange(group.extent - count + 1)
        if slot == other:  # two ranges of one set, which must not overlap
            places = group.extent - 2 * count
            first = self._rng.randrange(places + 1)
            start, other_start = first, first + count + self._rng.randrange(places - first + 1)
        return [
            wire.Swap(input=i, dim=dim, slot=slot, start=start, other=other, other_start=other_start, count=count)
            for i, dim in group.members
        ]


def _row_dim(tensor: Tensor) -> int:
    """The first dimension that has several positions, each with memory of its own; -1 where there is none."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return next((d for d, (extent, stride) in enumerate(pairs) if extent > 1 and stride != 0), -1)


def _rows_are_free(tensor: Tensor, dim: int, *, alone: bool) -> bool:
    """Whether rows may change one by one: not those of a symmetric matrix, not the elements of an ordered sequence, and
    within one set not those of a square matrix, which may be a triangle."""
    if dim < 0 or 0 in tensor.shape:
        return False
    square = tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]
    if square and (alone or bool((tensor == tensor.T).all())):
        return False
    if dim < tensor.ndim - 1 or tensor.is_complex():
        return True
    steps = tensor.shape[dim] - 1
    return not bool((tensor.narrow(dim, 1, steps) >= tensor.narrow(dim, 0, steps)).all())


def _most_rows(extent: int, tensors: Sequence[Tensor]) -> int:
    row_bytes = max(_bytes(t) // extent for t in tensors)
    return max(1, min(extent // _SHARE, _MOST_BYTES // max(1, row_bytes)))


def _bytes(tensor: Tensor) -> int:
    size = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= extent if stride != 0 else 1
    return size
