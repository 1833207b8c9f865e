"""What a generated `fused_K.py` tells the skeleton: tensors, sweeps and its element functions.

The functions are plain Python over CuTe scalars. Their parameters name what they read: operands, results of earlier
sweeps and rows, or `index_<d>`, the position along dimension d of the domain. An `elements` function returns the
arguments of its sweep's reductions in order; a `rows` function returns {name: value}; `final` returns the element-level
outputs in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """An operand or an output: its aligned shape has the domain's rank, each size the domain's or 1. An `indexed`
    operand has a shape of its own, and functions get it as a Source (see `addresses`). `strides` are likely, no more;
    empty: contiguous. `at`, where it is told: an indexed operand is read by one load alone, for each of its dimensions
    at start + the sum of step x position along a dimension of the domain; what lies outside is taken as `fill`. `free`:
    an indexed operand whose first dimension is the domain's, read at its own position: it has as many rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    indexed: bool = False
    strides: tuple[int, ...] = ()
    at: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    fill: float = 0.0
    free: bool = False

    @property
    def has_rows(self) -> bool:
        """Of a Spec with dynamic rows: whether its first size is their number."""
        return self.free if self.indexed else self.shape[0] > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionSpec:
    op: str
    source: str  # dtype of the argument
    dtype: str  # dtype of the results
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One pass over a row's elements, and what becomes computable from its reductions."""

    elements: Function
    reductions: tuple[ReductionSpec, ...]
    rows: Function | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxSpec:
    """What `Spec.final` makes of each element's share in its row, exp(x - maximum) / sum, where reduction number
    `reduction` of sweep `sweep` is the softmax_stats of x: `final` is the same, reading the shares under `name`. Where
    a row stays in registers, exponentials need not be taken again. `exact`: shares are to be as accurate as fp32."""

    name: str
    sweep: int
    reduction: int
    exact: bool
    final: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """A scan along the one reduced dimension: `elements` gives its arguments, of dtypes `sources`; `final` reads its
    `results`, the first of which is a `dtype`, up to each element from the row's front or, `reverse`, its back;
    `exclusive`: without the element itself."""

    op: str
    elements: Function
    sources: tuple[str, ...]
    dtype: str
    results: tuple[str, ...]
    reverse: bool
    exclusive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """The first `count` of each row in order, `op` "largest" or "smallest": `elements` gives the one argument, of dtype
    `source`; the `results` are values and positions, which nothing but outputs of those names takes."""

    op: str
    elements: Function
    source: str
    results: tuple[str, str]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedSpec:
    """Of the values of a row that `head` gives, `begin` and `end`: between them lies all that counts; `usual` is their
    usual distance."""

    begin: str
    end: str
    usual: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One fused computation. Without reduced dimensions it is pointwise: no sweeps, no rows, only `final`. With `scan`
    there are no sweeps, but `final`. `sums` are outputs that hold sums over the rows, in parts along the first kept
    dimension (see `sums`): `final` returns what is summed after the element-level outputs. `free`: dimension 0 may have
    any size from 2 on (see `free`); `domain` says the likeliest. `slides`: what is reduced of an element is the
    same for all windows that read it, and neutral outside (see `slides`). `stretch`: of a row that lies across the
    lanes, what is looked at (see `ragged`)."""

    name: str
    domain: tuple[int, ...]
    reduced: tuple[int, ...]
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    head: Function | None = None
    sweeps: tuple[Sweep, ...] = ()
    final: Function | None = None
    element_outputs: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    shares: SoftmaxSpec | None = None
    scan: ScanSpec | None = None
    rank: RankSpec | None = None
    free: bool = False
    slides: bool = False
    stretch: RaggedSpec | None = None

    @property
    def rows_of(self) -> int:
        """The operand whose first size is that of dimension 0, where that is free."""
        return next(i for i, o in enumerate(self.operands) if o.has_rows)

    @property
    def stepped(self) -> tuple[int, ...]:
        """Dimensions that a thread group walks through: the reduced ones, or all of a pointwise domain."""
        return self.reduced if self.reduced else tuple(range(len(self.domain)))

    @property
    def inner_size(self) -> int:
        return prod(self.domain[d] for d in self.stepped)

    def at_row_level(self, shape: tuple[int, ...]) -> bool:
        return bool(self.reduced) and all(shape[d] == 1 for d in self.reduced)

    @property
    def aligned_outputs(self) -> tuple[ArraySpec, ...]:
        """All but sums, and those that `rank` makes: these are longer than 1 along the reduced dimension, and shorter
        than it."""
        others = {*self.sums, *(self.rank.results if self.rank else ())}
        return tuple(o for o in self.outputs if o.name not in others)

    @property
    def parts(self) -> int:
        """In how many parts rows are summed; 0 without sums."""
        kept = next((d for d in range(len(self.domain)) if d not in self.reduced), 0)
        return next((o.shape[kept] for o in self.outputs if o.name in self.sums), 0)

    @property
    def aligned_operands(self) -> tuple[ArraySpec, ...]:
        return tuple(o for o in self.operands if not o.indexed)

    @property
    def element_operands(self) -> tuple[ArraySpec, ...]:
        return tuple(o for o in self.aligned_operands if not self.at_row_level(o.shape))


def reads(function: Function | None) -> tuple[str, ...]:
    """Names of a function's parameters."""
    if function is None:
        return ()
    code = function.__code__  # type: ignore[attr-defined]
    return tuple(code.co_varnames[: code.co_argcount])
