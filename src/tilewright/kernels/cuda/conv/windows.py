"""Where a convolution of stride 1 finds its windows in shared memory, and its order along K: plain numbers, no CUDA.

grid        the places (n, u) of x, u = o + e(t) in each spatial dimension, padding among them; e(t) = t |step|, of
            steps below 0 (taps - 1 - t) |step|; flattened, so that the window of a tap lies at a constant distance,
            its shift; rows of the product are places of the grid; those that are no output's are not written
segment     what `pixels` neighbours need of one line of taps, or of one plane of them: SIZE places
line of K   a stage has a block of channels and all taps: ATOMs (tap, 16 channels); of up to 8 channels (two taps
            with neighbouring shifts, 8 channels), and of an odd number of taps the last one twice, with half its
            weights
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from .shape import ATOM, GROUP, ConvShape

LINE = 8  # rows of a matrix that wgmma reads as one


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvGrid:
    """Of a ConvShape of stride 1."""

    shape: ConvShape

    @property
    def grid(self) -> tuple[int, int, int]:
        s = self.shape
        one, two, three = (n + (t - 1) * abs(e) for n, t, e in zip(s.out, s.taps, s.step, strict=True))
        return one, two, three

    @property
    def start(self) -> tuple[int, int, int]:
        """The place in x of the grid's first."""
        s = self.shape
        one, two, three = (a + min(0, (t - 1) * e) for a, t, e in zip(s.start, s.taps, s.step, strict=True))
        return one, two, three

    @property
    def places(self) -> int:
        """Of the grid, over the batch."""
        return self.shape.batch * prod(self.grid)

    @property
    def walk(self) -> tuple[int, int, int]:
        """How far neighbours along each dimension are apart."""
        _, two, three = self.grid
        return two * three, three, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments(ConvGrid):
    """What tiles of so many `pixels` need of the grid."""

    pixels: int

    @property
    def in_planes(self) -> bool:
        """Whether a segment holds what a plane of taps needs, and not a line."""
        return self._size(1) * self.shape.taps[0] < self._size(2) * self.shape.taps[0] * self.shape.taps[1]

    def _size(self, first: int) -> int:
        """Places of a segment that holds all taps from dimension `first` on."""
        s = self.shape
        reach = sum((s.taps[d] - 1) * abs(s.step[d]) * self.walk[d] for d in range(first, 3))
        return -(-(self.pixels + reach) // LINE) * LINE

    @property
    def size(self) -> int:
        """Places of a segment."""
        return self._size(1 if self.in_planes else 2)

    @property
    def segments(self) -> int:
        return self.shape.taps[0] * (1 if self.in_planes else self.shape.taps[1])

    @property
    def held(self) -> int:
        """Places of a stage."""
        return self.segments * self.size

    def begin(self, segment: Any) -> Any:
        """The distance of a segment's first place from the tile's."""
        lines = 1 if self.in_planes else self.shape.taps[1]
        apart = abs(self.shape.step[0]) * self.walk[0], abs(self.shape.step[1]) * self.walk[1]
        return segment // lines * apart[0] + segment % lines * apart[1]

    def order(self, tap: int) -> tuple[int, int, int]:
        """Of a tap, its number along each dimension in the order of e."""
        one, two, three = (
            t if e > 0 else n - 1 - t
            for t, n, e in zip(self.shape.tap(tap), self.shape.taps, self.shape.step, strict=True)
        )
        return one, two, three

    def shift(self, tap: int) -> int:
        """Where a tap's window begins among the places of a stage."""
        s, (one, two, three) = self.shape, self.order(tap)
        inner = three * abs(s.step[2])
        if self.in_planes:
            return one * self.size + two * abs(s.step[1]) * self.walk[1] + inner
        return (one * s.taps[1] + two) * self.size + inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(Segments):
    """The same, and the order along K."""

    @property
    def paired(self) -> bool:
        """Whether an ATOM has two taps."""
        return self.shape.channels <= GROUP

    @property
    def groups(self) -> int:
        """Groups of channels of a stage."""
        return 1 if self.paired else ATOM // GROUP

    @property
    def steps(self) -> int:
        """Stages of a tile."""
        return -(-self.shape.channels // (self.groups * GROUP))

    @property
    def taps(self) -> tuple[int, ...]:
        """All, by their shift."""
        return tuple(sorted(range(self.shape.all_taps), key=self.shift))

    @property
    def atoms(self) -> int:
        """Of a stage."""
        return -(-self.shape.all_taps // 2) if self.paired else self.shape.all_taps

    def atom(self, number: int) -> tuple[int, int]:
        """The places of a stage at which both halves of an ATOM begin."""
        taps = self.taps
        if not self.paired:
            return self.shift(taps[number]), self.shift(taps[number]) + self.held
        return self.shift(taps[2 * number]), self.shift(taps[min(2 * number + 1, len(taps) - 1)])

    @property
    def depth(self) -> int:
        return self.steps * self.atoms * ATOM

    @property
    def is_odd(self) -> bool:
        """Whether the last tap stands twice."""
        return self.paired and self.shape.all_taps % 2 == 1

    def is_twice(self, half: Any) -> Any:
        """Whether this half of an ATOM, counted over the stage, has half of its tap's weights."""
        return half >= self.shape.all_taps - 1

    def place(self, k: Any) -> tuple[Any, Any]:
        """(channel, number of the tap by its shift) of a place in K; both may lie behind the last."""
        step, inside = k // (self.atoms * ATOM), k % (self.atoms * ATOM)
        if self.paired:
            return inside % GROUP, inside // GROUP
        return step * ATOM + inside % ATOM, inside // ATOM
