"""One spatial dimension of a convolution, and which elements of its input each tap meets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """`size` elements of the input, `out` of the result. `summed`: the input holds, for each tap, what the sum of all
    results needs, so the side is one of channels rather."""

    size: int
    taps: int
    stride: int
    padding: int
    dilation: int
    out: int
    summed: bool = False

    def met(self, tap: int, *, transposed: bool) -> tuple[int, int]:
        """The first element of the input that a tap meets, and the one behind the last; of neighbours without gaps."""
        if not transposed:
            first = tap * self.dilation - self.padding
            return max(first, 0), min(first + self.out, self.size)
        first = self.padding - tap * self.dilation  # of stride x element
        return max(-(-first // self.stride), 0), min(-(-(first + self.out) // self.stride), self.size)

    @property
    def single(self) -> bool:
        """Whether each result is one element's, and those outside are zeros."""
        return self.taps == 1 and self.padding == 0 and not self.summed

    @property
    def extra(self) -> int:
        """How many results a convolution padded evenly has to give before the first one that is wanted, so that none
        is lacking at the end."""
        extra = 0
        while self._results(extra) < self.out + extra:
            extra += 1
        return extra

    @property
    def results(self) -> int:
        """How many it gives then."""
        return self._results(self.extra)

    def _results(self, extra: int) -> int:
        padded = self.size + 2 * (self.padding + extra * self.stride)
        return (padded - (self.taps - 1) * self.dilation - 1) // self.stride + 1

    @property
    def output_padding(self) -> int:
        """Of a transposed convolution."""
        least = (self.size - 1) * self.stride - 2 * self.padding + (self.taps - 1) * self.dilation + 1
        return self.out - least
