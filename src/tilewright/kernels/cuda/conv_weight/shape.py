"""What the gradient of a convolution's weight is, and in which order its kernel goes through it: plain numbers, no
CUDA.

    dw[g, a, b, t] = sum over (n, o) of dense[n, g A + a, o] * windowed[n, g B + b, o stride + start + t step]

A product of matrices: rows are pairs (b, t), columns are a, and K is the pixels (n, o), which are cut into splits of
whole steps. Rows come in groups of GROUP neighbouring b of one tap, the taps of such a block one after the other:

    row m = (b // GROUP * taps + t) * GROUP + b % GROUP

A stage holds DEPTH pixels of both operands. Each is lines of 64 rows (or columns) of one pixel, 128 bytes, whose chunks
of GROUP are swizzled (chunk q of pixel k lies at q ^ (k % 8)); DEPTH lines are followed by those of the next 64 rows.
So M, or N, is contiguous, and a thread gathers what lies in memory side by side for neighbouring threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..conv.shape import GROUP, ConvShape

DEPTH = 64  # pixels of a stage
LINE = 128  # bytes: 64 rows of 16 bits
CHUNK = 16  # bytes: a GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches(ConvShape):
    """A ConvShape of which groups of channels are read at any tap."""

    @property
    def natural(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShape:
    """`windowed` is the convolution of `windowed` whose output's places are those of `dense`: its `channels` are B,
    its `columns` A, of one of the `groups`."""

    windowed: Patches

    @property
    def dense(self) -> Patches:
        """What each pixel is multiplied by, as single taps."""
        s, ones = self.windowed, (1, 1, 1)
        return Patches(batch=s.batch, groups=s.groups, channels=s.columns, columns=1, image=s.out, out=s.out, taps=ones,
                       stride=ones, start=(0, 0, 0), step=ones)  # fmt: skip

    @property
    def row_groups(self) -> int:
        """GROUPs of rows, the last ones perhaps with channels behind the last."""
        return -(-self.windowed.channels // GROUP) * self.windowed.all_taps

    @property
    def steps(self) -> int:
        """Stages of all pixels."""
        return -(-self.windowed.pixels // DEPTH)

    def row(self, number: Any) -> tuple[Any, Any]:
        """(b, tap) of a row; b may lie behind the last."""
        group, taps = number // GROUP, self.windowed.all_taps
        return group // taps * GROUP + number % GROUP, group % taps


def chunk_at(pixel: Any, group: Any) -> Any:
    """Where in a stage's operand the chunk of a GROUP of rows lies, in bytes, of a pixel of the stage."""
    block, inside = group // 8, group % 8
    return block * (DEPTH * LINE) + pixel * LINE + (inside ^ (pixel % 8)) * CHUNK
