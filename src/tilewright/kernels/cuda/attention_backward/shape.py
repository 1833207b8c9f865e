"""What the gradients of an attention are, in numbers: plain Python, no CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..attention.shape import AttentionShape, Diagonals, Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientShape:
    """Over `domain`: batch .., queries, keys. `shared`: the dimensions of the batch over which the gradients of keys
    and values are summed. Outside of the diagonals (key - query) that are `visible` all weights are 0."""

    domain: tuple[int, ...]
    depth: int
    columns: int
    query: Layers
    key: Layers
    value: Layers
    upstream: Layers
    shared: tuple[int, ...] = ()
    visible: Diagonals = (None, None)

    @property
    def rows(self) -> int:
        return self.domain[-2]

    @property
    def keys(self) -> int:
        return self.domain[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        return self.domain[:-2]

    @property
    def batches(self) -> int:
        return prod(self.batch)

    def by(self, *, keys: bool) -> AttentionShape:
        """The shape whose tiles of rows are those of queries, or of keys, and which visits tiles of the others."""
        own, others = (self.keys, self.rows) if keys else (self.rows, self.keys)
        low, high = self.visible
        if keys:
            low, high = (None if high is None else -high), (None if low is None else -low)
        return AttentionShape(
            domain=(*self.batch, own, self.columns), row=len(self.batch), keys=others, depth=self.depth,
            query=self.query, key=self.key, value=self.value, visible=(low, high),
        )  # fmt: skip
