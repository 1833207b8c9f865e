"""The messages of a recorded call: whether it leaves work on streams that its own does not wait for, and what it gives
and takes when it is replayed."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import OutputFacts, TensorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Record a call as a CUDA graph: the last request of all, since what is recorded never runs."""

    args: str
    inputs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    leaves_streams: bool


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReplayed:
    ns: tuple[float, ...]  # of each replay, by the device's events
    outputs_tree: str
    outputs: tuple[OutputFacts, ...]
