"""The main loop of a cell: `python -m tilewright.cell.serve FD`. Reads requests, answers each with one message.

The first line on the channel is the judge's setup (JSON): nonce, device, protections asked for. Privileges are given up
before torch is imported; clocks are bound before any code under test is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

from .confine import Confinement, confine


def _setup_line(end: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        byte = end.recv(1)
        if not byte:
            raise SystemExit(2)
        data += byte
    found: dict[str, Any] = json.loads(data)
    return found


def main() -> None:
    end = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(end.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's to handle
    setup = _setup_line(end)
    active, missing = confine(
        Confinement(
            memory_bytes=setup["memory_bytes"],
            namespaces=setup["namespaces"],
            read_only=setup["read_only"],
            parent_pid=setup["parent_pid"],
            writable=tuple(setup["writable"]),
        )
    )
    import torch  # heavy: after the protections

    from . import wire
    from .session import Session

    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    if setup["matmul"]:
        torch.set_float32_matmul_precision(setup["matmul"])
    channel = wire.Channel(end, setup["nonce"])
    session = Session(channel, setup["device"])
    channel.send(wire.Hello(pid=os.getpid(), torch=torch.__version__, protections=active, missing=missing))
    session.serve()


if __name__ == "__main__":
    main()
