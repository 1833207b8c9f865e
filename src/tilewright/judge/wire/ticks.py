"""The messages of timed calls: what is dealt, swapped and evicted for them, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import Attribute, TensorRef

LEFT = -2  # the tag under which what a timed call left of the state that it moves is held


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The arguments and the slots of the timed calls that follow, and the state that they move: it is put back before
    each of them, from `state`."""

    args: str
    slots: tuple[tuple[TensorRef, ...], ...]
    moved: tuple[str, ...] = ()
    state: tuple[TensorRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lay:
    """Lay new memory (its descriptor rides along), which holds new contents, over `size_bytes` of the shared arena from
    `offset` on."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Places of one input that exchange contents: `count` positions of dimension `dim` (-1: the whole) from `start` in
    `slot`, and from `other_start` in the slot `other`."""

    input: int
    dim: int
    slot: int
    start: int
    other: int
    other_start: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """Let go of what the last timed call returned, put the state that calls move back, `attributes` with it, and evict
    caches of `flush_bytes`. `seed`: by which the walk through the judge's block goes, whose answer is Cleared; -1 where
    nobody wants to know."""

    flush_bytes: int
    seed: int = -1
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What a walk found (judge.wire.walks)."""

    found: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """Lay new contents over `lay_bytes` of the shared arena from `lay_offset` on, on a GPU evict `flush_bytes` of
    caches by the walk of `flush_seed`, carry out the swaps, with `warm` read the inputs, so that they lie in the
    caches, then call the module once on `slot` and time it. What comes next, and whether anybody will look at the
    result, the cell can't know: neither is decided yet. `phase`: "whole", or in training "forward" or "backward" alone.
    `repeat`: so many calls in the place of one. `delay_ns`: how long a GPU is kept busy before its clock starts, so
    that launches are not timed."""

    slot: int
    swaps: tuple[Swap, ...]
    warm: bool = False
    phase: str = "whole"
    repeat: int = 1
    delay_ns: float = 300e3
    lay_offset: int = 0
    lay_bytes: int = 0
    flush_bytes: int = 0
    flush_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCalls:
    """Timed calls, one after another without a word in between. `keep`: what each of them returned; else the last's."""

    calls: tuple[TimedCall, ...]
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldTimed:
    """Hold what a timed call returned under tag 0: the last, or the one of this number in the row just made."""

    number: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """ns of one timed call by the cell's own clock. On a GPU: how long after the delay began all of it was launched,
    and how long the device went on once the clock had stopped, until no stream had work left. `cpu_ns`: processor time
    that all threads of the process used meanwhile. `walked`: what the walk before it found, where one was asked for
    with the call."""

    ns: float
    launched_ns: float = 0.0
    after_ns: float = 0.0
    cpu_ns: float = 0.0
    walked: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Of each call in a row."""

    ticks: tuple[Tick, ...]
