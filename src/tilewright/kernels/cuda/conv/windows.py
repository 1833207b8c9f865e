"""Where a convolution of stride 1 finds its windows in shared memory, and its order along K: plain numbers, no CUDA.

grid        the places (n, u) of x, u = o + e(t) in each spatial dimension, padding among them; e(t) = t |step|, of
            steps below 0 (taps - 1 - t) |step|; flattened, so that the window of a tap lies at a constant distance,
            its shift; rows of the product are places of the grid; those that are no output's are not written
segment     what `pixels` neighbours need of one line of taps, or of one plane of them: SIZE places
line of K   a stage has a block of channels and all taps: ATOMs (tap, 16 channels); of up to 8 channels (two taps
            with neighbouring shifts, 8 channels), and of an odd number of taps the last one twice, with half its
            weights
phases      each has ATOMs of its own; those that read the same windows are a block, with one wgmma for all
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from .phases import ConvPart
from .shape import ATOM, GROUP, ConvShape

LINE = 8  # rows of a matrix that wgmma reads as one
_LEAST_TO_SPARE = 12  # places of a line, for each spare one


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvGrid:
    """Of a ConvShape of stride 1; of several phases if there are `parts`."""

    shape: ConvShape
    parts: tuple[ConvPart, ...] = ()

    @property
    def grid(self) -> tuple[int, int, int]:
        s = self.shape
        one, two, three = (n + (t - 1) * abs(e) for n, t, e in zip(s.out, s.taps, s.step, strict=True))
        return one, two, three + self.spare

    @property
    def spare(self) -> int:
        """Places behind each line, so that what 8 rows of the product write begins where a sector of memory does. Few:
        they are computed, too."""
        s = self.shape
        line = s.out[2] + (s.taps[2] - 1) * abs(s.step[2])
        more = (s.out[2] - line) % LINE
        return more if self.parts and more * _LEAST_TO_SPARE <= line else 0

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
class WindowProduct:
    """An ATOM of the places that begin at `first` and `second`, for the `count` phases of a block. Each has its
    (ATOM, columns) of weights, from number `weight` of a stage's on."""

    first: int
    second: int
    block: int = 0
    count: int = 1
    weight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHalf:
    """(GROUP, columns) of a stage's weights: the tap of w, which GROUP of the stage's channels, and whether the tap
    stands twice."""

    tap: int
    group: int
    twice: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """`blocks`: the phases, those that read the same windows together, without those that read none; the products of a
    stage, and with `parts` its weights in their order."""

    blocks: tuple[tuple[int, ...], ...]
    products: tuple[WindowProduct, ...]
    halves: tuple[PartHalf, ...] = ()


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
        """Of a stage, over all phases."""
        if self.parts:
            return sum(own.count for own in self.plan.products)
        return -(-self.shape.all_taps // 2) if self.paired else self.shape.all_taps

    def atom(self, number: int) -> tuple[int, int]:
        """The places of a stage at which both halves of an ATOM begin."""
        taps = self.taps
        if not self.paired:
            return self.shift(taps[number]), self.shift(taps[number]) + self.held
        return self.shift(taps[2 * number]), self.shift(taps[min(2 * number + 1, len(taps) - 1)])

    @property
    def plan(self) -> WindowPlan:
        """Of a stage."""
        return _plan(self)

    @property
    def depth(self) -> int:
        return self.steps * self.atoms * ATOM

    @property
    def is_odd(self) -> bool:
        """Whether some tap stands twice."""
        if self.parts:
            return any(own.twice for own in self.plan.halves)
        return self.paired and self.shape.all_taps % 2 == 1

    def is_twice(self, half: Any) -> Any:
        """Without parts, whether this half of an ATOM, counted over the stage, has half of its tap's weights."""
        return half >= self.shape.all_taps - 1

    def place(self, k: Any) -> tuple[Any, Any]:
        """Without parts, (channel, number of the tap by its shift) of a place in K; both may lie behind the last."""
        step, inside = k // (self.atoms * ATOM), k % (self.atoms * ATOM)
        if self.paired:
            return inside % GROUP, inside // GROUP
        return step * ATOM + inside % ATOM, inside // ATOM


@lru_cache(256)
def _plan(windows: Windows) -> WindowPlan:
    if not windows.parts:
        places = map(windows.atom, range(windows.atoms))
        products = (WindowProduct(first=a, second=b, weight=i) for i, (a, b) in enumerate(places))
        return WindowPlan(blocks=((0,),), products=tuple(products))
    taps = [_atoms_of(windows, part) for part in windows.parts]
    alike: dict[frozenset[tuple[int, int]], list[int]] = {}
    for number, own in enumerate(taps):
        alike.setdefault(frozenset(own), []).append(number)
    blocks = {tuple(numbers): places for places, numbers in alike.items() if places}
    found: list[WindowProduct] = []
    halves: list[PartHalf] = []
    for first, second in sorted({place for places in blocks.values() for place in places}):
        for block, (numbers, read) in enumerate(blocks.items()):
            if (first, second) in read:
                weight = len(halves) // 2
                found.append(
                    WindowProduct(first=first, second=second, block=block, count=len(numbers), weight=weight)
                )  # fmt: skip
                halves += [
                    PartHalf(tap=taps[number][first, second][half], group=0 if windows.paired else half,
                             twice=first == second)
                    for half in range(2) for number in numbers
                ]  # fmt: skip
    return WindowPlan(blocks=tuple(blocks), products=tuple(found), halves=tuple(halves))


def _atoms_of(windows: Windows, part: ConvPart) -> dict[tuple[int, int], tuple[int, int]]:
    """Of the ATOMs of a phase where both halves begin, and the tap of w of each."""
    own = sorted((windows.shift(window), tap) for tap, window in part.taps)
    if not windows.paired:
        return {(shift, shift + windows.held): (tap, tap) for shift, tap in own}
    pairs = zip(own[::2], own[1::2] + own[-1:], strict=False)
    return {(one[0], two[0]): (one[1], two[1]) for one, two in pairs}
