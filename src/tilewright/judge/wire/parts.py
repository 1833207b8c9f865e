"""The values that the wire's messages are made of."""

from __future__ import annotations

from dataclasses import dataclass

from ...facts.tensor import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """A tensor that lies in an arena: byte offset of its first element, and its spec."""

    arena: str
    offset: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSpec:
    """`hidden`: `state_dict` does not show it."""

    name: str
    spec: TensorSpec
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """A plain value that a module keeps: its dotted name, and its text (judge.candidate_process.values); "" where it
    is none."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a tensor of the state, of this name, was when it was constructed. `key` stands for type, shape and
    contents; `constant`: all of its elements were `value`."""

    name: str
    key: str
    is_parameter: bool
    constant: bool
    value: float
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """What a cell says of one returned tensor before a byte of it is accepted."""

    spec: TensorSpec
    type_name: str  # exactly "torch.Tensor" for an honest result
    device: str  # "cpu" or "cuda"
    aliases_input: int = -1  # position of the input tensor whose storage it shares; -1: none
    aliases_output: int = -1  # position of the earlier output whose memory it shares; -1: none
    overlaps: bool = False  # several of its elements share memory


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentClocks:
    """Device time of one kernel, or on the CPU an operator's own time, under the name that the profiler gives it. Of a
    kernel's launch, where that was asked for: registers a thread, bytes of shared memory and threads a CTA, CTAs."""

    name: str
    ns: float
    registers: int = 0
    shared_bytes: int = 0
    threads: int = 0
    ctas: int = 0
