"""Where this thread's elements lie, and how they are loaded and stored there; traced inside a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, cute
from cutlass.cute.nvgpu import CopyG2ROp, CopyR2GOp

from . import math as m
from .control import trap_unless
from .views import IndexSpace


def coordinates(index: Any, sizes: tuple[int, ...]) -> list[Any]:
    """The mixed-radix digits of an index, outermost first."""
    if len(sizes) == 1:
        return [index]
    rest = Uint32(index)
    digits = []
    for size in reversed(sizes[1:]):
        digits.append(Int32(rest % Uint32(size)))
        rest = rest // Uint32(size)
    digits.append(Int32(rest))
    return digits[::-1]


L2_POLICIES = {"first": 0x12F0000000000000, "last": 0x14F0000000000000}  # as `createpolicy` makes them: what goes first


class Addresses:
    """Offsets of one group's elements in every view, and access to the tensors there.

    Offsets are 32-bit unless `wide`. A vector is `space.vector` neighbouring lanes; where a view is broadcast along it,
    one element stands for all. `hints` say, of tensors, whether the L2 gives up their lines "first" or "last"."""

    def __init__(self, space: IndexSpace, tensors: dict[str, Any], group_index: Any, *, wide: bool) -> None:
        self.space = space
        self.tensors = tensors
        self.hints: dict[str, str] = {}
        self.kind = Int64 if wide else Int32
        place = coordinates(group_index, space.group_sizes)
        self.base = {name: self._dot(place, view.group_strides) for name, view in space.views.items()}

    def _dot(self, place: list[Any], strides: tuple[int, ...]) -> Any:
        total = self.kind(0)
        for coordinate, stride in zip(place, strides, strict=True):
            if stride:
                total = total + self.kind(coordinate) * self.kind(stride)
        return total

    def lane_stride(self, name: str) -> int:
        return self.space.views[name].lane_stride

    def at_step(self, name: str, step: Any) -> Any:
        """Offset of the first lane of a step."""
        place = coordinates(step, self.space.step_sizes)
        return self.base[name] + self._dot(place, self.space.views[name].step_strides)

    def at_lane(self, name: str, step: Any, lane: int) -> Any:
        """Offset of one element of a row that is a single mode, clamped into the row."""
        element = self.kind(step) * self.space.vector + lane
        nearest = cutlass.min(element, self.kind(self.space.inner - 1))
        return self.base[name] + nearest * self.lane_stride(name)

    def inside(self, step: Any) -> list[Any]:
        """For each lane, whether it lies in the row (which is a single mode)."""
        element = self.kind(step) * self.space.vector
        return [element + lane < self.space.inner for lane in range(self.space.vector)]

    def vector(self, name: str, offset: Any, lanes: int) -> Any:
        """`lanes` neighbours at `offset` in global memory; the offset is a multiple of lanes."""
        pointer = self.tensors[name].iterator + (cute.assume(offset, divby=lanes) if lanes > 1 else offset)
        return cute.make_tensor(pointer, cute.make_layout((lanes,)))

    def load(self, name: str, offset: Any) -> Any:
        """A fragment of the vector at `offset`: one element where the view is broadcast along it."""
        stride = self.lane_stride(name)
        lanes = 1 if stride == 0 else self.space.vector
        if lanes > 1 and stride != 1:
            return self.load_lanes(name, [offset + lane * stride for lane in range(lanes)])
        fragment = cute.make_rmem_tensor((lanes,), self.tensors[name].element_type)
        self._move(name, CopyG2ROp, self.vector(name, offset, lanes), fragment)
        return fragment

    def _move(self, name: str, operation: Any, source: Any, target: Any) -> None:
        """Copy one vector from or to global memory, as hinted."""
        if name not in self.hints:
            cute.autovec_copy(source, target)
            return
        kind = source.element_type
        atom = cute.make_copy_atom(operation(), kind, num_bits_per_copy=cute.size(source) * kind.width)
        cute.copy(atom, source, target, cache_policy=Int64(L2_POLICIES[self.hints[name]]))

    def load_lanes(self, name: str, offsets: list[Any]) -> Any:
        """A fragment of single elements."""
        kind = self.tensors[name].element_type
        fragment = cute.make_rmem_tensor((len(offsets),), kind)
        for lane, offset in enumerate(offsets):
            single = cute.make_rmem_tensor((1,), kind)
            cute.autovec_copy(self.vector(name, offset, 1), single)
            fragment[lane] = single[0]
        return fragment

    def store(self, name: str, offset: Any, values: list[Any]) -> None:
        """Store element-typed values at neighbouring lanes (one where the view is broadcast along them)."""
        stride = self.lane_stride(name)
        values = values[:1] if stride == 0 else values
        parts = [values] if stride == 1 else [[v] for v in values]
        for number, part in enumerate(parts):
            fragment = cute.make_rmem_tensor((len(part),), self.tensors[name].element_type)
            for lane, value in enumerate(part):
                fragment[lane] = value
            self._move(name, CopyR2GOp, fragment, self.vector(name, offset + number * stride, len(part)))


def is_wide(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether offsets into a tensor need 64 bits."""
    return sum(abs(s) * (n - 1) for s, n in zip(strides, sizes, strict=True)) >= 2**31


class Source:
    """An operand that element functions read wherever they say, one element at a time.

    `at` has a position (a whole number, or a literal) for each of its dimensions; `checked` are those dimensions beyond
    which positions may lie. Nothing is touched outside: the first element is read instead, and given up. `sizes` are
    the Spec's: where its rows are free, those of some number of them, whose offsets are as wide as all others'."""

    def __init__(self, tensor: Any, dtype: str, sizes: Sequence[int]) -> None:
        self.tensor, self.dtype, self.sizes = tensor, dtype, sizes
        strides = tensor.stride if isinstance(tensor.stride, tuple) else (tensor.stride,)
        self.strides = [0 if n == 1 else int(s) for n, s in zip(self.sizes, strides, strict=True)]
        self.kind = Int64 if is_wide(self.sizes, self.strides) else Int32

    def load(self, at: tuple[Any, ...], checked: tuple[int, ...] = (), fill: Any = None) -> Any:
        """The element there, `fill` where it lies outside; without one, to lie outside is a gather's error: the kernel
        ends there, as torch's own do."""
        offset = self.kind(0)
        for position, stride in zip(at, self.strides, strict=True):
            if stride:
                offset = offset + self.kind(position) * self.kind(stride)
        inside = self.inside(at, checked)
        if checked:
            offset = m.select(inside, offset, self.kind(0))
        if checked and fill is None:
            trap_unless(inside)
        single = cute.make_rmem_tensor((1,), self.tensor.element_type)
        cute.autovec_copy(cute.make_tensor(self.tensor.iterator + offset, cute.make_layout((1,))), single)
        value = m.cast(single[0], self.dtype)
        return m.select(inside, value, m.cast(fill, self.dtype)) if checked and fill is not None else value

    def inside(self, at: tuple[Any, ...], checked: tuple[int, ...]) -> Any:
        """Whether all positions lie in the tensor."""
        found = Boolean(True)
        for d in checked:
            position = Int32(at[d]) if isinstance(at[d], int) else at[d]
            found = m.both(found, m.both(position >= 0, position < self.sizes[d]))
        return found
