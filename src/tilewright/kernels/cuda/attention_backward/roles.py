"""Which kernels make the gradients, what each holds and visits, and its barriers: plain numbers, no CUDA.

    role       a CTA has               it visits                             it makes
    queries    64 `groups` queries     tiles of keys                         query gradient += scored K
    keys       64 `groups` keys        tiles of queries, of all that share   key gradient += scored^T Q
    values     the same                them                                  value gradient += weights^T dO
    operand    64 `groups` queries     one tile of keys, in all batches      a further result of the map
               and `tile_n` keys       over which that is summed

`scored` is the gradient of the score. A role may have the results of both keys and values, where registers suffice.

shared memory    own tiles (of the operand's role in stages, too) | `stages` of both visited tiles | barriers
registers        of a thread: score and weight gradient tile_n / 2 each, results width / 2, factors tile_n / 4 (the
                 second factor takes the first one's place), or a further result tile_n / 2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..attention.tiles import RESERVED_BYTES, SHARED_BYTES, padded
from .shape import GradientShape

KNOBS: dict[str, tuple[Any, ...]] = {
    "groups": (1, 2, 3), "tile_n": (16, 32, 48, 64, 96, 128), "stages": (1, 2, 3),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"groups": 2, "tile_n": 64, "stages": 2}
MOST_COLUMNS = 256
REGISTERS = {1: (56, 240), 2: (24, 240), 3: (32, 160)}  # see attention/tiles.py
_BESIDE = {1: 24, 2: 24, 3: 24}  # of a thread, for all but tiles: with less, ptxas spills
SCORED, WEIGHTS = 0, 1
OWN = 0  # the barrier of what a CTA holds from its beginning to its end
Loop = Callable[[Any, Any, Callable[[Any], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPoint:
    """`depth` and `columns` are those of a tile in shared memory, in steps that swizzles like."""

    groups: int
    tile_n: int
    stages: int
    depth: int
    columns: int

    @property
    def tile_m(self) -> int:
        return 64 * self.groups

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        return REGISTERS[self.groups]

    def row_bytes(self) -> int:
        return 2 * (self.depth + self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """`by_keys`: own rows are keys. `makes`: of each result the factor that the map gives (SCORED times the first
    visited tile, WEIGHTS times the second). `further`: the number of the map's further result; -1: none. `summed`: the
    dimensions of the batch over which a CTA goes."""

    name: str
    by_keys: bool = False
    makes: tuple[int, ...] = ()
    further: int = -1
    summed: tuple[int, ...] = ()

    def staged_bytes(self, point: GradientPoint) -> int:
        own = point.tile_m * (point.stages if self.further >= 0 else 1)
        return (own + point.tile_n * point.stages) * point.row_bytes()

    def held(self, point: GradientPoint) -> int:
        """Registers of a thread for tiles."""
        widths = sum((point.depth, point.columns)[made] // 2 for made in self.makes)
        return point.tile_n + widths + point.tile_n * (6 if self.further >= 0 else 1) // 4

    def fits(self, point: GradientPoint) -> bool:
        shared = self.staged_bytes(point) <= SHARED_BYTES - RESERVED_BYTES
        return shared and self.held(point) <= point.registers[1] - _BESIDE[point.groups]


def roles_of(shape: GradientShape, point: GradientPoint, further: tuple[tuple[int, ...], ...]) -> tuple[Role, ...]:
    """The launches. `further`: of each further result of the map the dimensions of the batch over which it is summed.
    Raises ValueError where one does not fit."""
    both = Role(name="keys", by_keys=True, makes=(SCORED, WEIGHTS), summed=shape.shared)
    apart = tuple(
        Role(name=name, by_keys=True, makes=(made,), summed=shape.shared)
        for name, made in (("keys", SCORED), ("values", WEIGHTS))
    )
    found = (
        Role(name="queries", makes=(SCORED,)),
        *((both,) if both.fits(point) else apart),
        *(Role(name=f"operand_{i}", further=i, summed=summed) for i, summed in enumerate(further)),
    )
    for role in found:
        if not role.fits(point):
            raise ValueError(f"{role.name}: {role.held(point)} registers or {role.staged_bytes(point)} bytes don't fit")
    return found


def make_point(shape: GradientShape, knobs: dict[str, Any], further: tuple[tuple[int, ...], ...]) -> GradientPoint:
    """The setting of these knobs. Raises ValueError on an unknown knob or value, and on what does not fit."""
    for name, value in knobs.items():
        if name not in KNOBS or value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS.get(name, 'no values')}")
    made = GradientPoint(**knobs, depth=padded(shape.depth), columns=padded(shape.columns))
    if max(made.depth, made.columns) > MOST_COLUMNS:
        raise ValueError(f"heads of {shape.depth} and {shape.columns} are wider than {MOST_COLUMNS}")
    roles_of(shape, made, further)
    return made


class VisitLoads(Protocol):
    """What the warp that loads does; a `turn` is one visit."""

    def wait(self, barrier: Any, parity: Any) -> None: ...
    def own(self, barrier: Any) -> None: ...
    def visit(self, turn: Any, stage: Any, barrier: Any) -> None: ...


class VisitProducts(Protocol):
    """What a warpgroup that multiplies does."""

    def wait(self, barrier: Any, parity: Any) -> None: ...
    def free(self, barrier: Any) -> None: ...
    def begin(self, stage: Any) -> None:
        """Of score and weight gradient."""

    def settle(self) -> None:
        """Wait until no product is at work."""

    def map(self, turn: Any) -> None: ...
    def begin_results(self, stage: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitProtocol:
    """Who waits for whom in a CTA: a ring of `stages`, each of all that one visit needs.

    barrier    arrivals of a phase    said by it
    own        1 + bytes              what is held throughout is there
    full[s]    1 + bytes              stage s is there
    free[s]    warps that multiply    stage s has been multiplied

    Visit number t lies in stage t % stages, and its phase on full[s] has the parity of t // stages. Whoever fills the
    stage waits for the parity before that on free[s], which a new barrier passes. `holds`: there are own tiles."""

    stages: int
    holds: bool

    @property
    def barriers(self) -> int:
        return 1 + 2 * self.stages

    def arrivals(self, warps: int) -> tuple[int, ...]:
        return (1, *(1,) * self.stages, *(warps,) * self.stages)

    def load(self, ops: VisitLoads, turns: Any, loop: Loop) -> None:
        def one(turn: Any) -> None:
            stage, parity = turn % self.stages, turn // self.stages % 2
            ops.wait(stage + (1 + self.stages), 1 - parity)
            ops.visit(turn, stage, stage + 1)

        if self.holds:
            ops.own(OWN)
        loop(0, turns, one)

    def multiply(self, ops: VisitProducts, turns: Any, loop: Loop) -> None:
        def one(turn: Any) -> None:
            stage, parity = turn % self.stages, turn // self.stages % 2
            ops.wait(stage + 1, parity)
            ops.begin(stage)
            ops.settle()
            if not self.holds:
                ops.free(stage + (1 + self.stages))
            ops.map(turn)
            if self.holds:
                ops.begin_results(stage)
                ops.settle()
                ops.free(stage + (1 + self.stages))

        if self.holds:
            ops.wait(OWN, 0)
        loop(0, turns, one)
