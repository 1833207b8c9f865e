"""A Discovery: what a module's main case spends its time in, operator by operator, and what each pattern could win."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..ir.alone import attention_backward_in, attention_in, recurrence_in
from ..ir.graph import Graph
from .machine import Machine
from .pattern import Pattern
from .problem import Target, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementOfGraph:
    """One statement of a graph that is run as torch runs it, and the call whose time it is ("": nobody's)."""

    call: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A node of the graph, and the expression that has its value where the graph's statements are run."""

    node: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatistics:
    """What a value of the graph looked like when the module ran on its own inputs: enough to draw others like it.

    `low`, `high`, `mean`, `deviation` are those of the finite elements that are not nought; `zeros` and `infinite` are
    shares of all: those that are nought, and minus infinity."""

    node: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    low: float
    high: float
    mean: float
    deviation: float
    zeros: float = 0.0
    infinite: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """What one call took on the values that it really gets, ns, and what it has to do at least."""

    call: str
    ns: float
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The calls of a graph run one after the other, in turn with the module itself; the fastest of `rounds`, ns."""

    calls: tuple[CallTime, ...]
    module_ns: float
    rounds: int

    @property
    def calls_ns(self) -> float:
        return sum(c.ns for c in self.calls)

    @property
    def whole_ns(self) -> float:
        """What shares are shares of: the module's time, or that of its calls where they take longer by themselves."""
        return max(self.module_ns, self.calls_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a module's time: a pattern at all its matches, or operators that are left to torch for the same reason.

    `floor_ns`: the time that this part can't beat on the machine; of a pattern, every match's."""

    pattern: str  # Pattern.id; "": left to torch
    title: str
    rule: str  # what realises it, or
    why: str  # why nothing does
    calls: tuple[str, ...]  # those that fall in it, if only in part
    ns: float
    share: float  # of Replayed.whole_ns
    floor_ns: float

    @property
    def distance(self) -> float:
        """How much of its time lies above the floor, from 0 to 1."""
        return max(0.0, 1.0 - self.floor_ns / self.ns) if self.ns > 0 else 0.0

    @property
    def gain(self) -> float:
        """The share of the module's time that would be won if this part came down to its floor."""
        return self.share * self.distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """`parts` stand in the order of what they can win; `owners`: for each call of the graph the parts that it falls in,
    by their place there, and which share of it."""

    problem: str
    target: Target
    device: str
    graph: Graph
    patterns: tuple[Pattern, ...]
    replay: Replayed
    floors_ns: tuple[tuple[str, float], ...]  # of each call by itself
    parts: tuple[Part, ...]
    floor_ns: float  # of the whole module

    @property
    def covered(self) -> float:
        """The share of the module's time that falls in patterns."""
        return sum(p.share for p in self.parts if p.pattern)

    @property
    def gain(self) -> float:
        """The share of the module's time that all patterns together could win."""
        return sum(p.gain for p in self.parts if p.pattern)


def floor_of(pattern: Pattern, machine: Machine) -> float:
    """The time that all matches of a pattern can't beat together: what each reads and writes, and its product's
    flops."""
    program = pattern.program
    item, whole, layers = program.product, attention_in(program), recurrence_in(program)
    flops = 2 * len(program.products) * prod((*program.domain, *item.over)) if item is not None else 0
    backward = attention_backward_in(program)
    dtype = "f32" if item is None else "f16" if item.allow_tf32 else item.dtype
    if whole is not None:
        flops = 2 * prod(program.domain[:-1]) * whole.keys * (whole.depth + program.domain[-1])
        dtype = whole.dtype
    if layers is not None:
        flops, dtype = layers.flops(*program.operands[0].shape), layers.dtype
    if backward is not None:  # scores again and score gradient with either factor; weight gradient and value gradient
        flops = 2 * prod(program.domain[:-1]) * backward.keys * (3 * backward.depth + 2 * program.domain[-1])
        dtype = backward.dtype
    work = Work(
        bytes_read=program.traffic_bytes, bytes_written=0, matmul_flops=flops, conv_flops=0, dtype=dtype
    )  # fmt: skip
    return machine.floor_ns(work) * max(1, len(pattern.matches))
