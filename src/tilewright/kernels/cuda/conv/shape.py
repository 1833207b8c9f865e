"""What a convolution computes and in which order its kernel goes through K: plain numbers, no CUDA.

    y[n, g Co + co, o] = sum over (c, t) of x[n, g C + c, o stride + start + t step] * w[g Co + co, c, t]

with three spatial dimensions (o, t, stride, start and step are triples; a convolution of fewer has ones in front). A
transposed convolution has steps below 0; where its own stride, `spread`, is not 1, x is read at (o + start + t step) /
spread where that is whole. What lies outside of x is 0.

Such a one falls into phases (see `phases`).

K, the pairs (c, t), is gone through in groups of GROUP, which one thread reads for one pixel:

    natural      k = c taps + t: for few channels; every offset is a constant of the code
    blocked      group = (c / GROUP) taps + t, c % GROUP inside: one offset and one test a group; neighbours in time
                 read the same lines of x again
    channels_inside
                 k = t channels + c, for x in channels-last, of whole GROUPs of channels: a group lies in one piece

A stage holds DEPTH of K. The last one may hold less, whole ATOMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

GROUP = 8  # of K: 16 bytes of 16 bits
ATOM = 16  # of K: one wgmma
DEPTH = 64  # of K: a stage, 128 bytes of 16 bits
MOST_NATURAL = 384  # of K whose offsets are constants of the code
MOST_TAPS = 32  # along one dimension: tests are bits of a word
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """See the module's docstring. `channels` and `columns` are C and Co: of one of the `groups`; `image` is the spatial
    size of x, `out` of y, `taps` of w."""

    batch: int
    groups: int
    channels: int
    columns: int
    image: Triple
    out: Triple
    taps: Triple
    stride: Triple
    start: Triple
    step: Triple
    spread: Triple = (1, 1, 1)
    channels_inside: bool = False

    @property
    def pixels(self) -> int:
        """Of the output, over the batch: the rows of the product."""
        return self.batch * prod(self.out)

    @property
    def all_taps(self) -> int:
        return prod(self.taps)

    @property
    def natural(self) -> bool:
        return self.channels < GROUP or self.channels * self.all_taps <= MOST_NATURAL

    @property
    def group_count(self) -> int:
        """Groups of K that hold anything."""
        if self.natural:
            return -(-self.channels * self.all_taps // GROUP)
        return -(-self.channels // GROUP) * self.all_taps

    @property
    def depth(self) -> int:
        """K, in whole ATOMs."""
        return -(-self.group_count * GROUP // ATOM) * ATOM

    @property
    def steps(self) -> int:
        return -(-self.depth // DEPTH)

    @property
    def tail(self) -> int:
        """ATOMs of the last step; 0 where it is as long as the others."""
        return self.depth % DEPTH // ATOM

    @property
    def flops(self) -> int:
        return 2 * self.groups * self.columns * self.pixels * self.channels * self.all_taps // prod(self.spread)

    def place(self, k: Any) -> tuple[Any, Any]:
        """(channel, tap) of a place in K; the channel may lie behind the last, where there is nothing."""
        if self.channels_inside:
            behind = k // (self.channels * self.all_taps)
            return k % self.channels + behind * self.channels, k // self.channels % self.all_taps
        if self.natural:
            return k // self.all_taps, k % self.all_taps
        group = k // GROUP
        return group // self.all_taps * GROUP + k % GROUP, group % self.all_taps

    def tap(self, number: Any) -> tuple[Any, Any, Any]:
        """Along each dimension."""
        inner = self.taps[1] * self.taps[2]
        return number // inner, number // self.taps[2] % self.taps[1], number % self.taps[2]

    def tested(self) -> tuple[int, ...]:
        """The dimensions along which some tap lies outside of x for some output."""
        found = []
        for d in range(3):
            ends = (0, self.stride[d] * (self.out[d] - 1)), (0, self.step[d] * (self.taps[d] - 1))
            low, high = (self.start[d] + sum(f(pair) for pair in ends) for f in (min, max))
            found += [d] if low < 0 or high >= self.image[d] else []
        return tuple(found)
