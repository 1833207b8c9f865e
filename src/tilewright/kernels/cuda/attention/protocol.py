"""Who waits for whom in a CTA: the order of loads and products, as the kernel traces it and as a test runs it.

    barrier         arrivals of a phase    said by it
    queries         1 + bytes              the queries are there
    full keys[s]    1 + bytes              stage s holds a tile of keys
    free keys[s]    warps that multiply    stage s has been multiplied
    full values[s]  1 + bytes              and the same of values
    free values[s]  warps that multiply

Tile number t of those that the CTA visits (its *turn*) lies in stage t % stages. Its phase has the parity of
t // stages on the full barrier. Whoever fills the stage waits for the parity before that on the free one, which a new
barrier passes.

    loads       queries, K0, K1, V0, K2, V1, ... , K(n-1), V(n-2), V(n-1)
    multiplies  S0; then for each t: S(t) and O += P(t-1) V(t-1) are both begun; S(t) is awaited and K(t) freed; the
                softmax of S(t) runs beside the second product; that is awaited and V(t-1) freed; at last
                O += P(n-1) V(n-1)

Loads are in the order in which stages are freed, so with one stage of each, too, the next load waits only for products
whose operands were loaded before it. S(t) is begun before P(t-1) is used up: K(t) therefore comes before V(t-1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

QUERIES = 0
Loop = Callable[[Any, Any, Callable[[Any], None]], None]  # body(i) for i from the first on, before the second


class LoadingRole(Protocol):
    """What the warp that loads does; `turn` counts the tiles that it visits, `tile` is the tile's number."""

    def wait(self, barrier: Any, parity: Any) -> None: ...
    def queries(self, barrier: Any) -> None: ...
    def keys(self, tile: Any, stage: Any, barrier: Any) -> None: ...
    def values(self, tile: Any, stage: Any, barrier: Any) -> None: ...


class MultiplyingRole(Protocol):
    """What a warpgroup that multiplies does."""

    def wait(self, barrier: Any, parity: Any) -> None: ...
    def free(self, barrier: Any) -> None:
        """A warp is through with a stage."""

    def begin_scores(self, stage: Any) -> None: ...
    def begin_results(self, stage: Any) -> None: ...
    def settle(self, pending: int) -> None:
        """Wait until no more than so many products are at work."""

    def weigh(self, tile: Any) -> None:
        """The softmax of the scores, relative to the largest so far."""

    def rescale(self) -> None:
        """Bring the results to the largest so far, and make factors of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingProtocol:
    """With so many stages of keys, and of values."""

    stages: int

    @property
    def barriers(self) -> int:
        return 1 + 4 * self.stages

    def full(self, of: int, stage: Any) -> Any:
        """The barrier of a full stage; `of`: 0 keys, 1 values."""
        return stage + (1 + 2 * of * self.stages)

    def free(self, of: int, stage: Any) -> Any:
        return stage + (1 + (2 * of + 1) * self.stages)

    def arrivals(self, warps: int) -> tuple[int, ...]:
        """Of each barrier, by its number."""
        return (1, *((1,) * self.stages + (warps,) * self.stages) * 2)

    def stage(self, turn: Any) -> tuple[Any, Any]:
        """Where a turn's tile lies, and its parity."""
        return turn % self.stages, turn // self.stages % 2

    def load(self, ops: LoadingRole, span: tuple[Any, Any], loop: Loop) -> None:
        """The loads of a CTA whose tiles of keys are these: from the first on, before the second."""
        first, last = span

        def one(of: int, tile: Any) -> None:
            stage, parity = self.stage(tile - first)
            ops.wait(self.free(of, stage), 1 - parity)
            (ops.values if of else ops.keys)(tile, stage, self.full(of, stage))

        def both(tile: Any) -> None:
            one(0, tile)
            one(1, tile - 1)

        ops.queries(QUERIES)
        one(0, first)
        loop(first + 1, last, both)
        one(1, last - 1)

    def multiply(self, ops: MultiplyingRole, span: tuple[Any, Any], loop: Loop) -> None:
        """The products of a warpgroup over the same tiles."""
        first, last = span

        def scores(turn: Any) -> None:
            stage, parity = self.stage(turn)
            ops.wait(self.full(0, stage), parity)
            ops.begin_scores(stage)

        def results(turn: Any) -> None:
            stage, parity = self.stage(turn)
            ops.wait(self.full(1, stage), parity)
            ops.begin_results(stage)

        def step(tile: Any) -> None:
            turn = tile - first
            scores(turn)
            results(turn - 1)
            ops.settle(1)
            ops.free(self.free(0, self.stage(turn)[0]))
            ops.weigh(tile)
            ops.settle(0)
            ops.free(self.free(1, self.stage(turn - 1)[0]))
            ops.rescale()

        ops.wait(QUERIES, 0)
        scores(0)
        ops.settle(0)
        ops.free(self.free(0, 0))
        ops.weigh(first)
        ops.rescale()
        loop(first + 1, last, step)
        results(last - 1 - first)
        ops.settle(0)
