"""How many bytes of a storage a set of strided views covers at least: what must be read, however it is read."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

_MOST_REGIONS = 512  # a loop over time steps has so many; each one is held against all others

Dims = tuple[tuple[int, int], ...]  # (size, stride), the largest stride first


@dataclass(frozen=True, slots=True)
class InputRegion:
    """The bytes of a storage that a view reaches: an offset, and dimensions in a form of which there is one only."""

    offset: int
    dims: Dims

    @property
    def size(self) -> int:
        """How many bytes these are, or fewer where two indices may reach the same one."""
        count, reach = 1, 1
        for size, stride in reversed(self.dims):
            count = count * size if stride >= reach else max(count, size)
            reach = (size - 1) * stride + reach
        return count

    @property
    def end(self) -> int:
        return self.offset + _extent(self.dims)


def region(tensor: Tensor) -> InputRegion:
    """Of a strided tensor that is not empty. Broadcast dimensions reach nothing more, and dimensions that lie within
    one another without a gap are one."""
    width = tensor.element_size()
    dims: list[tuple[int, int]] = [(width, 1)] if width > 1 else []
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda d: d[1]):
        if size == 1 or stride == 0:
            continue
        if dims and stride * width == dims[-1][0] * dims[-1][1]:
            dims[-1] = (dims[-1][0] * size, dims[-1][1])
        else:
            dims.append((size, stride * width))
    return InputRegion(int(tensor.storage_offset()) * width, tuple(reversed(dims)))


def add(known: tuple[InputRegion, ...], new: InputRegion) -> tuple[InputRegion, ...]:
    """Regions that have nothing in common: the known ones, and the new one, or those of them that may overlap it,
    whichever is more. So the sum of their sizes is never more than what all of them reach."""
    rest: list[InputRegion] = []
    lost = 0
    for other in known:  # once: a module may come here a hundred thousand times with five hundred of them
        if _apart(other, new):
            rest.append(other)
        else:
            lost += other.size
    return (*rest, new) if new.size > lost and len(rest) < _MOST_REGIONS else known


def _extent(dims: Dims) -> int:
    """From the first byte reached to behind the last one."""
    return sum((size - 1) * stride for size, stride in dims) + 1


def _apart(a: InputRegion, b: InputRegion) -> bool:
    """Whether the two are seen to have no byte in common."""
    if a.offset > b.offset:
        a, b = b, a
    if a.end <= b.offset:
        return True
    return _apart_within(a.dims, b.dims, b.offset - a.offset)


def _apart_within(a: Dims, b: Dims, shift: int) -> bool:
    """Whether two regions have nothing in common, the second of which begins `shift` >= 0 bytes later. Seen where
    both step by the same outermost stride, and neither reaches into its own next step."""
    if not a or not b:
        return False
    (many, stride), (_, other) = a[0], b[0]
    steps, shift = divmod(shift, stride)
    if stride != other or _extent(a[1:]) > stride or shift + _extent(b[1:]) > stride:
        return False
    if steps >= many or shift >= _extent(a[1:]):
        return True
    return _apart_within(a[1:], b[1:], shift)
