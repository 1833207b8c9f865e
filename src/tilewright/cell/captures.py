"""The messages of a recorded call: whether it leaves work on streams that its own does not wait for."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import TensorRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Record a call as a CUDA graph: the last request of all, since what is recorded never runs."""

    args: str
    inputs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    leaves_streams: bool
