"""The channel between the judge and a cell: length-prefixed JSON frames, one message each.

A frame is 4 bytes of length (big endian) and that many bytes of UTF-8 JSON: an object with `nonce`, `seq`, `kind` and
`body`. Descriptors of arenas ride along as ancillary data.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from .parsing import WireError, parse, to_plain

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


class Channel:
    """One end of the private socket pair. Every frame carries the nonce and counts up; a wrong one is a WireError, and
    so is a message of another kind than `kinds` has."""

    def __init__(self, end: socket.socket, nonce: str, kinds: Mapping[str, type]) -> None:
        self._end, self._nonce, self._kinds = end, nonce, kinds
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
        kind = self._kinds.get(str(frame.get("kind")))
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
