"""What crosses between the judge and a cell: length-prefixed JSON frames that carry typed, strictly parsed messages.

A frame is 4 bytes of length (big endian) and that many bytes of UTF-8 JSON: an object with
`nonce`, `seq`, `kind` and `body`.
Nothing is ever unpickled. What does not parse into the expected frozen dataclass, field by field, is a WireError.
Tensors never travel here: messages name places in arenas (see cell.arena), whose descriptors ride along as ancillary
data.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from ..facts.problem import TensorSpec, Work

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")
T = TypeVar("T")


class WireError(Exception):
    """The other side sent something that is not a message, or closed the channel."""


# ---- values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """A tensor that lies in an arena: byte offset of its first element, and its spec."""

    arena: str
    offset: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSpec:
    name: str
    spec: TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """What a cell says of one returned tensor before a byte of it is accepted."""

    spec: TensorSpec
    type_name: str  # exactly "torch.Tensor" for an honest result
    device: str  # "cpu" or "cuda"
    aliases_input: int = -1  # position of the input tensor whose storage it shares; -1: none


# ---- requests (judge -> cell) --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MapArena:
    """Make an arena visible. `handle` is base64 of a CUDA IPC handle, or empty: the descriptor rides with the frame."""

    name: str
    size_bytes: int
    device: str
    handle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmapArena:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCandidate:
    folder: str
    entry: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProblem:
    path: str
    source: str
    cases: tuple[str, ...]
    compiled: bool  # run the module under torch.compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Construct:
    """Build the module. `init` is an encoded argument tree (cell.values), `tensors` the tensors in it."""

    init: str
    tensors: tuple[TensorRef, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstructCase:
    """In a reference cell: build the module of one case; what the last one held is given back first."""

    case: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """In a reference cell: run the constructed case once and say all that is known of it. `trace`: also its graph."""

    seed: int
    trace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """In a reference cell: call the constructed case a few times on inputs of its own, so that compilation is over."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInit:
    """In a reference cell: write the tensors among the constructor's arguments."""

    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeInputs:
    """In a reference cell: draw the case's inputs with this seed and family and write them."""

    seed: int
    family: str
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redraw:
    """In a reference cell: perturb all floating parameters and buffers in place around the values constructed."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """In a reference cell: run in float64 on these inputs and write the results."""

    args: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    names: tuple[str, ...]
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    names: tuple[str, ...]
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call the module once; what it returns is held under `tag` until dropped. `poison_bytes`: sizes of freed blocks to
    fill with a NaN pattern first."""

    tag: int
    args: str
    inputs: tuple[TensorRef, ...]
    poison_bytes: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Copy the tensors held under `tag` into place."""

    tag: int
    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Give cached memory back; forget all held results too, unless they are to be kept."""

    keep_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Call the module once for each entry of `order` (an index into `slots`), timing each; hold the results of call
    `keep` under tag 0 (-1: none). `flush_bytes` > 0: evict caches of that size before every call."""

    args: str
    slots: tuple[tuple[TensorRef, ...], ...]
    order: tuple[int, ...]
    keep: int
    flush_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Set the knobs (a JSON object) of one pattern of the candidate."""

    pattern: str
    knobs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountFallbacks:
    """Ask how often the candidate left its fast path."""


# ---- replies (cell -> judge) ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    pid: int
    torch: str
    protections: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The request was carried out; nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`by_code`: raised by the code under test (else by the cell's own code)."""

    by_code: bool
    reason: str
    summary: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constructed:
    state: tuple[NamedSpec, ...]
    training: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """`init` and `args` are encoded argument trees; `outputs_tree` the encoded structure of what is returned."""

    init: str
    init_tensors: tuple[TensorSpec, ...]
    args: str
    inputs: tuple[TensorSpec, ...]
    outputs_tree: str
    outputs: tuple[OutputFacts, ...]
    state: tuple[NamedSpec, ...]
    mutated_state: tuple[str, ...]
    random: bool  # two calls on the same values give results that rounding does not explain
    work: Work
    graph: str  # facts.codec text; empty: none was asked for, or it can't be traced
    trace_failure: str
    call_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    outputs_tree: str
    outputs: tuple[OutputFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """ns of each timed call, by the cell's own clocks."""

    samples_ns: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallbacks:
    counts: tuple[tuple[str, int], ...]


# ---- parsing -------------------------------------------------------------------------------------------------------


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@cache
def _kinds() -> dict[str, type]:
    return {name: v for name, v in globals().items() if isinstance(v, type) and dataclasses.is_dataclass(v)}


def to_plain(value: Any) -> Any:
    """A tree for `json.dumps` of a message or of what is in one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [to_plain(v) for v in value] if isinstance(value, tuple) else value


def parse(hint: Any, tree: Any) -> Any:
    """`tree` as a value of exactly the hinted type; WireError where it does not fit. bool is no int; int is a float."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        arms = typing.get_args(hint)
        if not isinstance(tree, list):
            raise WireError(f"a list was expected, not {type(tree).__name__}")
        if len(arms) == 2 and arms[1] is Ellipsis:
            return tuple(parse(arms[0], v) for v in tree)
        if len(arms) != len(tree):
            raise WireError(f"{len(arms)} items were expected, not {len(tree)}")
        return tuple(parse(a, v) for a, v in zip(arms, tree, strict=True))
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        raise WireError("unions do not travel")
    if dataclasses.is_dataclass(hint):
        hints = _hints(typing.cast(type, hint))
        if not isinstance(tree, dict) or set(tree) != set(hints):
            raise WireError(f"no {getattr(hint, '__name__', hint)}: {str(tree)[:100]}")
        return typing.cast(Any, hint)(**{k: parse(h, tree[k]) for k, h in hints.items()})
    if hint is float and type(tree) is int:
        return float(tree)
    if type(tree) is not hint:
        raise WireError(f"{getattr(hint, '__name__', hint)} was expected, not {type(tree).__name__}")
    return tree


# ---- the channel ---------------------------------------------------------------------------------------------------


class Channel:
    """One end of the private socket pair. Every frame carries the nonce and counts up; a wrong one is a WireError."""

    def __init__(self, end: socket.socket, nonce: str) -> None:
        self._end = end
        self._nonce = nonce
        self._sent = 0
        self._received = 0
        self._descriptors: list[int] = []

    def send(self, message: Any, *descriptors: int) -> None:
        self._sent += 1
        frame = {"nonce": self._nonce, "seq": self._sent, "kind": type(message).__name__, "body": to_plain(message)}
        data = json.dumps(frame, separators=(",", ":")).encode()
        if len(data) > MAX_FRAME_BYTES:
            raise WireError(f"a message of {len(data)} bytes is too long")
        head = _LENGTH.pack(len(data))
        try:
            if descriptors:
                socket.send_fds(self._end, [head], list(descriptors))
            else:
                self._end.sendall(head)
            self._end.sendall(data)
        except OSError as error:
            raise WireError(f"the channel is closed ({error})") from error

    def receive(self) -> Any:
        """The next message, any kind; raises WireError when it is malformed or the other side has gone, TimeoutError
        when the socket has a timeout and it passes."""
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size, descriptors=True))
        if length > MAX_FRAME_BYTES:
            raise WireError(f"a frame of {length} bytes was announced")
        try:
            frame = json.loads(self._take(length))
        except ValueError as error:
            raise WireError("a frame is not JSON") from error
        self._received += 1
        if not isinstance(frame, dict) or frame.get("nonce") != self._nonce or frame.get("seq") != self._received:
            raise WireError("a frame without the right nonce and number")
        kind = _kinds().get(str(frame.get("kind")))
        if kind is None:
            raise WireError(f"a message of unknown kind {str(frame.get('kind'))[:40]!r}")
        return parse(kind, frame.get("body"))

    def descriptor(self) -> int:
        """The oldest descriptor that came with a frame; the caller owns it."""
        if not self._descriptors:
            raise WireError("a descriptor was announced and did not come")
        return self._descriptors.pop(0)

    def _take(self, size: int, *, descriptors: bool = False) -> bytes:
        chunks: list[bytes] = []
        while size:
            if descriptors:
                chunk, found, _, _ = socket.recv_fds(self._end, size, 4)
                self._descriptors += found
            else:
                chunk = self._end.recv(min(size, 1 << 20))
            if not chunk:
                raise WireError("the other side has gone")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)
