"""Which addresses of x a pixel's windows have: its origin, the taps that lie inside, and groups of K."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64

from .ptx import read_group, read_wide
from .shape import GROUP, ConvShape


class Gather:
    """`walk`: strides of x along (sample, group, channel, three spatial dimensions); `item`: bytes of an element."""

    def __init__(self, shape: ConvShape, walk: tuple[int, ...], item: int) -> None:
        self.shape, self.walk, self.item = shape, walk, item
        self.tested = shape.tested()
        self.wide = in_one_piece(shape, walk, item)

    def pixel(self, number: Any) -> tuple[Any, Any, Any, Any]:
        """(sample, place along each dimension) of a pixel; of one behind the last that one's."""
        _, o1, o2 = self.shape.out
        number = cutlass.min(number, Int32(self.shape.pixels - 1))
        line, last = number // o2, number % o2
        plane = line // o1
        return plane // self.shape.out[0], plane % self.shape.out[0], line % o1, last

    def origin(self, x: Any, at: tuple[Any, ...], group: Any) -> Any:
        """The address that tap 0 of channel 0 of the group has, perhaps outside of x."""
        return x.iterator.toint() + self.element(at, group, 0) * self.item

    def element(self, at: tuple[Any, ...], group: Any, channel: Any) -> Any:
        """How many elements behind x's first one the first element of a pixel's window lies."""
        (of_n, of_g, of_c, *steps), s = self.walk, self.shape
        place = Int64(at[0]) * of_n + Int64(group) * of_g + Int64(channel) * of_c
        for d in range(3):
            place = place + Int64(at[1 + d] * s.stride[d] + s.start[d]) * steps[d]
        return place

    def bits(self, at: tuple[Any, ...]) -> dict[int, Any]:
        """By dimension, whether each tap lies inside of x, a bit each."""
        s, found = self.shape, {}
        for d in self.tested:
            first, bits = at[1 + d] * s.stride[d] + s.start[d], Int32(0)
            for t in range(s.taps[d]):
                place = first + t * s.step[d]
                inside = Int32(place >= 0) & Int32(place < s.image[d])
                bits = bits | (inside << Int32(t))
            found[d] = bits
        return found

    def offset(self, channel: Any, tap: tuple[Any, Any, Any]) -> Any:
        """In elements, from the origin."""
        return channel * self.walk[2] + sum(t * self.shape.step[d] * self.walk[3 + d] for d, t in enumerate(tap))

    @staticmethod
    def test(bits: dict[int, Any], tap: tuple[Any, Any, Any]) -> Any:
        """Whether this tap lies inside of x, 1 or 0; None where all do."""
        found = None
        for d, of_dim in bits.items():
            bit = of_dim >> Int32(tap[d])
            found = bit if found is None else found & bit
        return None if found is None else found & Int32(1)

    def natural(self, group: int, pixel: tuple[Any, Any]) -> list[Any]:
        """A group whose offsets are constants. `pixel`: its origin and its bits."""
        s, (origin, bits) = self.shape, pixel
        first, number = s.place(group * GROUP)
        if s.channels_inside and self.wide and first < s.channels:
            tap = s.tap(number)
            return read_wide(self.item, origin, self.offset(first, tap) * self.item, self.test(bits, tap))
        offsets: list[int | None] = []
        tests: list[Any] = []
        known: dict[int, Any] = {}
        for k in range(group * GROUP, (group + 1) * GROUP):
            channel, number = s.place(k)
            inside = channel < s.channels
            tap = s.tap(number)
            if inside and number not in known:
                known[number] = self.test(bits, tap)
            offsets.append(self.offset(channel, tap) * self.item if inside else None)
            tests.append(known[number] if inside else None)
        return read_group(self.item, origin, offsets, tests)

    def blocked(self, group: Any, pixel: tuple[Any, Any]) -> list[Any]:
        """A group of neighbouring channels at one tap."""
        s, (origin, bits) = self.shape, pixel
        group = Int32(group)
        if s.channels_inside:
            per_tap = s.channels // GROUP
            block, number, left = group % per_tap, group // per_tap, (s.group_count - group) * GROUP
        else:
            block, number = group // s.all_taps, group % s.all_taps
            left = s.channels - block * GROUP
        tap = s.tap(number)
        test = self.test(bits, tap)
        address = origin + Int64(self.offset(block * GROUP, tap)) * self.item
        odd = s.group_count * GROUP < s.depth or s.channels % GROUP > 0
        left = left if odd else None
        return read_channels(self.item, address, self.walk[2], left, test, wide=self.wide)


def in_one_piece(shape: ConvShape, walk: tuple[int, ...], item: int) -> bool:
    """Whether x, which begins at a multiple of 16 bytes, has each group of channels in one piece, at such a multiple,
    and groups are whole."""
    others = (step for d, step in enumerate(walk) if d != 2)
    return shape.channels % GROUP == 0 and walk[2] == 1 and not any(step * item % 16 for step in others)


def read_channels(item: int, address: Any, step: int, left: Any, test: Any, *, wide: bool = False) -> list[Any]:
    """A group of neighbouring channels, `step` elements apart, of which so many are `left` (None: enough), all of them
    0 where the test is. `wide`: it lies in one piece."""
    if wide:
        there = None if left is None else Int32(left > 0)
        return read_wide(item, address, 0, there if test is None else test if there is None else test & there)
    offsets = [j * step * item for j in range(GROUP)]
    if left is None:
        return read_group(item, address, offsets, [test] * GROUP)
    there = [Int32(left > j) for j in range(GROUP)]
    return read_group(item, address, offsets, [t if test is None else t & test for t in there])
