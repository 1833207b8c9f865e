"""Hidden cases: shapes and strides that the problem file does not name, and that no strategy is told.

A candidate may be made for the shapes of its problem; then it must say so loudly, by raising. One that gives wrong
results in silence is refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Sequence

from ...facts.problem import OpenSize
from ..client import CellFault
from ..wire import messages as wire
from .check import RefusedByCheck
from .plan import Trial, secret

SHAPES = 3  # accepted variants of the shape; one more of the strides
MOST_BYTES = 64 << 20  # of inputs and outputs of a variant
HOPELESS_BYTES = 4 << 30  # a case so large is drawn too slowly, to be cut down then
VOUCHED = "hidden cases: passed when this very candidate was handed over before, and not repeated"
_LEAST_ODD = 8  # smaller extents are widths of kernels and channels, which modules insist on


Variants = Generator[wire.Variant, bool, None]
Extents = tuple[tuple[int, int], ...]


def variants(
    kwargs: str, described: wire.Described, *, sizes: Sequence[OpenSize] = (), rng: random.Random | None = None
) -> Variants:
    """Variants of a case, the most telling first: at other values of its open `sizes`, if it has any. The reference may
    refuse any of them: whether it took one is to be sent back."""
    batch, fits = _rows(described)
    larger = 4 * described.work.bytes_moved < MOST_BYTES
    numbers = json.loads(kwargs)
    if sizes:
        yield from _by_open_sizes(numbers, sizes, described, rng or random.Random(0))
    elif numbers:
        yield from _by_keywords(numbers, larger=larger)
    elif batch:
        yield from _by_dimensions(described, batch, fits, larger=larger)


def offer(offered: Variants, found: Sequence[object], *, take: Callable[[wire.Variant], bool]) -> None:
    """Have `take`, which says whether the reference takes a variant, add some of those offered to `found`: SHAPES at
    most."""
    try:
        variant = next(offered)
        while len(found) < SHAPES:
            variant = offered.send(take(variant))
    except StopIteration:
        return


def strided(kwargs: str, described: wire.Described) -> wire.Variant:
    """The case with its inputs in padded or transposed memory; with fewer rows where it is large."""
    _, fits = _rows(described)
    whole = described.work.bytes_moved <= MOST_BYTES or json.loads(kwargs)
    return wire.Variant(kwargs=kwargs, batch=0 if whole else fits, extents=(), strided=True)


def _rows(described: wire.Described) -> tuple[int, int]:
    """Rows of the case, 0 where no input has any; and how many of them, one at least, stay within MOST_BYTES."""
    batch = next((s.shape[0] for s in described.inputs if s.shape), 0)
    return batch, max(1, min(batch, int(batch * MOST_BYTES / max(described.work.bytes_moved, 1))))


def _by_open_sizes(
    numbers: dict[str, object], sizes: Sequence[OpenSize], described: wire.Described, rng: random.Random
) -> Variants:
    """The least sizes, any others, and the greatest of them that fit into the memory of a variant."""
    most = max(MOST_BYTES, described.work.bytes_moved) / max(described.work.bytes_moved, 1)
    share = most ** (1 / len(sizes))  # by which each may grow
    greatest = {s.name: max(s.low, min(s.high, int(s.size * share))) for s in sizes}
    others = {s.name: rng.randint(s.low, greatest[s.name]) for s in sizes}
    for change in ({s.name: s.low for s in sizes}, others, greatest):
        text = json.dumps(numbers | change, sort_keys=True)
        yield wire.Variant(kwargs=text, batch=0, extents=(), strided=False)


def _by_keywords(numbers: dict[str, object], *, larger: bool) -> Variants:
    sizes = {k: v for k, v in numbers.items() if type(v) is int and v > 1}
    changed = [{k: prime_below(v) for k, v in sizes.items() if v >= _LEAST_ODD}]
    changed += [{k: prime_below(v)} for k, v in sorted(sizes.items(), key=lambda kv: -kv[1])]
    changed += [{k: 1} for k in sizes]
    if larger:
        changed[1:1] = [{k: 2 * v + 1} for k, v in list(sizes.items())[:1]]
    for change in changed:
        if change:
            text = json.dumps(numbers | change, sort_keys=True)
            yield wire.Variant(kwargs=text, batch=0, extents=(), strided=False)


def _by_dimensions(described: wire.Described, batch: int, fits: int, *, larger: bool) -> Variants:
    def variant(rows: int, extents: Extents = ()) -> wire.Variant:
        return wire.Variant(kwargs="{}", batch=rows, extents=extents, strided=False)

    labels = any(s.dtype.startswith(("i", "u")) for s in described.inputs)  # their values depend on other extents
    others = {e for s in described.inputs for e in s.shape if e >= _LEAST_ODD}
    odd: Extents = tuple((e, prime_below(e)) for e in sorted(others))
    rows = prime_below(fits) if fits < batch else 0
    free: Extents = ()  # extents that the module does not insist on
    if odd and not labels:
        if (yield variant(rows, odd)):
            free = odd
        elif len(odd) > 1:  # some are its weights'
            for extent in odd:
                free += (extent,) if (yield variant(rows, (extent,))) else ()
        if fits < batch and batch in {
            e for s in described.inputs for e in s.shape[1:]
        }:  # square: rows are columns, too
            side = prime_below(max(2, int(batch * (fits / batch) ** 0.5)))
            yield variant(0, tuple((e, side if e == batch else less) for e, less in odd))
    grown = _grown(described, free) if larger else ()
    alone = 0 if batch in dict(grown) else 2 * batch + 1  # rows that are columns of another input grow there, too
    if not (grown and (yield variant(alone, grown))):
        yield variant(2 * batch + 1 if larger else prime_below(fits))
    yield variant(1)
    yield variant(prime_below(fits))


def _grown(described: wire.Described, free: Sequence[tuple[int, int]]) -> Extents:
    """Extents that may grow to one more than twice their size, as many as still fit."""
    found: Extents = ()
    size = 4 * described.work.bytes_moved
    for extent, _ in free:
        larger = size * 2 ** max(s.shape.count(extent) for s in described.inputs)
        if larger < MOST_BYTES:
            size, found = larger, (*found, (extent, 2 * extent + 1))
    return found


def prime_below(number: int) -> int:
    """The largest prime under `number`; 1 where there is none."""
    return next((n for n in range(number - 1, 1, -1) if all(n % d for d in range(2, int(n**0.5) + 1))), 1)


def refused(error: RefusedByCheck, shapes: str) -> RefusedByCheck:
    """The refusal, said to be of a hidden case."""
    failure = error.failure
    summary = f"hidden case, inputs of {shapes}: {failure.summary}"
    return RefusedByCheck(failure.reason, summary, failure.excerpt)


def is_loud(fault: CellFault) -> bool:
    """Whether a candidate said itself that it does not do this: its process goes on, and its device."""
    return fault.reason in ("raised", "out_of_memory") and "CUDA error" not in fault.summary


def trials(case: int, described: wire.Described, *, rng: random.Random) -> tuple[Trial, ...]:
    """Own inputs, and one other distribution."""
    redraw = secret(rng) if described.state else 0
    return (
        Trial(case=case, family="own", seed=secret(rng), redraw=0, draws=secret(rng)),
        Trial(case=case, family=rng.choice(("normal", "integers")), seed=secret(rng), redraw=redraw, draws=secret(rng)),
    )
