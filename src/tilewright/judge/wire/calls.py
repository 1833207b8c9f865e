"""What a candidate's process is asked by the judge, and what it answers: typed, strictly parsed messages.

Nothing is ever unpickled. What does not parse into the expected frozen dataclass, field by field, is a WireError.
Tensors never travel here: messages name places in arenas (see judge.memory.mapped), whose descriptors ride along as
ancillary data. A reference's process understands these, and those of judge.wire.messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...facts.gradients import NO_GRADIENTS, Gradients
from .parts import Attribute, Mark, NamedSpec, OutputFacts, SpentClocks, TensorRef

LEFT = -2  # the tag under which what a timed call left of the state that it moves is held

# ---- requests (judge -> cell) --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MapArena:
    """Make an arena visible. `handle` is base64 of a CUDA IPC handle, or empty: the descriptor rides with the frame.
    `sealed`: it can only be read."""

    name: str
    size_bytes: int
    device: str
    handle: str = ""
    sealed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmapArena:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCandidate:
    folder: str
    entry: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Construct:
    """Build the module. `init` is an encoded argument tree (judge.candidate_process.values), `tensors` the tensors in
    it; `attributes`: names of those whose values are to be told."""

    init: str
    tensors: tuple[TensorRef, ...]
    seed: int
    gradients: Gradients = NO_GRADIENTS
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    names: tuple[str, ...]
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    names: tuple[str, ...]
    refs: tuple[TensorRef, ...]
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareState:
    """Hold state against what was loaded into it, bit by bit."""

    names: tuple[str, ...]
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAttributes:
    """Ask for plain values that the module keeps under these names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkState:
    """Take the marks of the state as constructed (see judge.candidate_process.state)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """CallRequest the module once; what it returns is held under `tag` until dropped. `poison_bytes`: sizes of freed
    blocks to fill with a NaN pattern first. In training, `between`: inputs of another forward before this one's
    backward, if any; `unlike`: upstream gradients lie in memory as no kernel makes them, and those that are nought are
    left out."""

    tag: int
    args: str
    inputs: tuple[TensorRef, ...]
    poison_bytes: tuple[int, ...]
    seed: int
    between: tuple[TensorRef, ...] = ()
    unlike: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequest:
    """Copy the tensors held under `tag` into place."""

    tag: int
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Forget held results, or all but those under tag 0, and give cached memory back. `thorough`: on the CPU also
    what the C library keeps for later, as a measurement of memory wants it."""

    keep_first: bool = False
    thorough: bool = False


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
class Clear:
    """Let go of what the last timed call returned, put the state that calls move back, `attributes` with it, and evict
    caches of `flush_bytes`. `seed`: by which the walk through the judge's block goes, whose answer is Cleared; -1 where
    nobody wants to know."""

    flush_bytes: int
    seed: int = -1
    attributes: tuple[Attribute, ...] = ()


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
class Configure:
    """Set the knobs (a JSON object) of one pattern of the candidate."""

    pattern: str
    knobs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountFallbacks:
    """Ask how often the candidate left its fast path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """CallRequest the module under torch's profiler. `launches`: with what each launch on a GPU took of a
    multiprocessor."""

    args: str
    inputs: tuple[TensorRef, ...]
    launches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """CallRequest the module once, and say how much memory it took."""

    args: str
    inputs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """Record a call as a CUDA graph: the last request of all, since what is recorded never runs."""

    args: str
    inputs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGraph:
    """Record a call on these very tensors as a CUDA graph, to be replayed; two calls go before it."""

    args: str
    inputs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGraph:
    """Replay what was recorded so many times, each after so many bytes of caches were evicted, and hold its result
    under tag 0."""

    inputs: tuple[TensorRef, ...]
    times: int
    flush_bytes: int = 0


# ---- replies (cell -> judge) ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    protections: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The request was carried out; nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReply:
    """`by_code`: raised by the code under test (else by the cell's own code)."""

    by_code: bool
    reason: str
    summary: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constructed:
    """`hidden`: buffers and tensor attributes that `state` does not hold."""

    state: tuple[NamedSpec, ...]
    training: bool
    hidden: tuple[NamedSpec, ...] = ()
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedState:
    """The names of what is not as it was loaded."""

    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    values: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    outputs_tree: str
    outputs: tuple[OutputFacts, ...]
    moved_input: int = -1  # position of an input tensor that has another shape or other memory than before; -1: none
    attributes: tuple[Attribute, ...] = ()  # of a timed call: the plain values that it left


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What a walk found (judge.wire.walks)."""

    found: float


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallbacks:
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What one call spent its time in, the longest first; how many kernels and copies it started on a GPU, and the
    host's time for one that is empty (0: not on a GPU)."""

    spent: tuple[SpentClocks, ...]
    launches: int = 0
    launch_ns: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakBytes:
    """On a GPU, the most that torch's allocator held at once; 0 on the CPU, where the judge looks itself."""

    allocated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReply:
    leaves_streams: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReplayed:
    ns: tuple[float, ...]  # of each replay, by the device's events
    outputs_tree: str
    outputs: tuple[OutputFacts, ...]


# The messages by name.
KINDS: Mapping[str, type] = MappingProxyType({
    name: value for name, value in globals().items()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == __name__
})  # fmt: skip
