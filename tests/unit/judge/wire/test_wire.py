"""Frames and messages: what is sent arrives, and what is not a message is refused."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from tilewright.facts.problem import TensorSpec
from tilewright.judge.wire import messages as wire
from tilewright.judge.wire.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def _ref(offset: int = 512) -> wire.TensorRef:
    return wire.TensorRef(arena="shared", offset=offset, spec=TensorSpec(shape=(2, 3), stride=(3, 1), dtype="f32"))


MESSAGES = [
    wire.Done(),
    wire.CallRequest(tag=3, args='[{"$":"tensor","v":0}]', inputs=(_ref(), _ref(1024)), poison_bytes=(24,), seed=7),
    wire.Deal(args="[]", slots=((_ref(),), ())),
    wire.TimedCall(
        slot=1,
        swaps=(wire.Swap(input=0, dim=-1, slot=1, start=0, other=0, other_start=0, count=0),),
        warm=True,
    ),
    wire.Clear(flush_bytes=4096),
    wire.Tick(ns=1.5),
    wire.TimedCalls(calls=(wire.TimedCall(slot=0, swaps=()), wire.TimedCall(slot=2, swaps=(), warm=True)), keep=True),
    wire.Ticks(ticks=(wire.Tick(ns=1.5), wire.Tick(ns=2.5, launched_ns=3.0))),
    wire.FaultReply(by_code=True, reason="raised", summary="s", excerpt="x" * 100_000),
    wire.OperationList(operations=(wire.Operation(name="relu", ways=("skip 0", "cut"), heavy=False),)),
    wire.Fallbacks(counts=(("grad", 2),)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_what_is_sent_arrives(ends: tuple[socket.socket, socket.socket], message: object) -> None:
    Channel(ends[0], "n", wire.ALL_KINDS).send(message)
    assert Channel(ends[1], "n", wire.ALL_KINDS).receive() == message


def test_descriptors_ride_along(ends: tuple[socket.socket, socket.socket]) -> None:
    mine = os.memfd_create("x")
    os.write(mine, b"hello")
    Channel(ends[0], "n", wire.ALL_KINDS).send(wire.MapArena(name="a", size_bytes=5, device="cpu"), mine)
    os.close(mine)
    there = Channel(ends[1], "n", wire.ALL_KINDS)
    assert there.receive().size_bytes == 5
    with os.fdopen(there.descriptor(), "rb") as file:
        file.seek(0)
        assert file.read() == b"hello"


def test_another_nonce_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    Channel(ends[0], "guessed", wire.ALL_KINDS).send(wire.Done())
    with pytest.raises(wire.WireError, match="nonce"):
        Channel(ends[1], "true", wire.ALL_KINDS).receive()


def test_a_replayed_frame_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    there = Channel(ends[1], "n", wire.ALL_KINDS)
    for _ in range(2):
        Channel(ends[0], "n", wire.ALL_KINDS).send(wire.Done())  # both count as the first
    assert there.receive() == wire.Done()
    with pytest.raises(wire.WireError, match="number"):
        there.receive()


def _frame(kind: object, body: object) -> bytes:
    data = json.dumps({"nonce": "n", "seq": 1, "kind": kind, "body": body}).encode()
    return struct.pack(">I", len(data)) + data


@pytest.mark.parametrize(
    "raw",
    [
        _frame("Nothing", {}),
        _frame("Done", {"more": 1}),
        _frame("Tick", {"ns": True}),
        _frame("Tick", {"ns": "12"}),
        _frame("Tick", {"ns": None}),
        _frame("Called", {"outputs_tree": 3, "outputs": []}),
        _frame("TensorRef", None),
        _frame(["Done"], {}),
        struct.pack(">I", 2**31) + b"{}",
        struct.pack(">I", 3) + b"no!",
        struct.pack(">I", 3) + b"123",
    ],
)
def test_what_is_no_message_is_refused(ends: tuple[socket.socket, socket.socket], raw: bytes) -> None:
    ends[0].sendall(raw)
    with pytest.raises(wire.WireError):
        Channel(ends[1], "n", wire.ALL_KINDS).receive()


def test_the_end_of_the_other_side_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(b"\0\0")
    ends[0].close()
    with pytest.raises(wire.WireError, match="gone"):
        Channel(ends[1], "n", wire.ALL_KINDS).receive()
