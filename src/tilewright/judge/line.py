"""The line to a cell: one private channel, watched while the judge waits for an answer.

The judge waits with a deadline and watches the memory of the whole process tree. Every way to go wrong is a CellFault
with the stage's slug, never a hang.
"""

from __future__ import annotations

import json
import secrets
import signal
import socket
from typing import Any, TypeVar

from ..edges.sandbox.deadline import Deadline
from ..facts.errors import TooBusy
from .cell_process import TAIL_BYTES, CellPlan, CellProcess, CellUsage
from .wire import calls
from .wire import messages as wire
from .wire.channel import Channel

T = TypeVar("T")
_POLL_S = 0.25


def _printable(text: str) -> str:
    """The text without what moves a cursor or has no form in UTF-8: it comes from code that nobody trusts."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


class CellFault(Exception):
    """A request was not carried out. `by_code`: the code under test raised, or the process that runs it died, hung or
    sent nonsense; else the cell's own code failed. `source` is the cell's name; `excerpt` what was raised or printed
    last."""

    def __init__(self, reason: str, summary: str, *, source: str, excerpt: str = "", by_code: bool = True) -> None:
        super().__init__(f"{reason}: {_printable(summary)}")
        self.source = source
        self.reason = reason
        self.summary = _printable(summary)
        self.excerpt = _printable(excerpt[-TAIL_BYTES:])
        self.by_code = by_code


class CellLine:
    """The judge's end. What ends a conversation for good kills the process."""

    def __init__(self, plan: CellPlan, process: CellProcess, usage: CellUsage) -> None:
        self._plan, self._process, self._usage = plan, process, usage
        self._end = process.end
        self._killed_for: tuple[str, str] | None = None
        nonce = secrets.token_hex(16)
        setup = {
            "nonce": nonce, "device": plan.device, "threads": plan.threads, "matmul": plan.matmul,
            "isolate": plan.isolate, "namespaces": plan.namespaces,
            "memory_bytes": plan.memory_bytes if plan.device == "cpu" else 0,  # CUDA reserves far more than it uses
            "own": str(plan.folder), "hidden": [str(p) for p in plan.hidden],
        }  # fmt: skip
        self._end.sendall(json.dumps(setup).encode() + b"\n")
        self._channel = Channel(self._end, nonce, calls.KINDS if plan.isolate else wire.ALL_KINDS)

    def send(self, request: Any, descriptor: int | None = None) -> None:
        try:
            self._channel.send(request, *(() if descriptor is None else (descriptor,)))
        except wire.WireError as error:
            raise self._death(str(error)) from error

    def receive(self, kind: type[T], limit_s: float) -> T:
        deadline = Deadline(limit_s, self._process.pid)
        while True:
            try:
                self._await_data(deadline)
                reply = self._channel.receive()
                break
            except TimeoutError as error:
                raise self._hang(limit_s) from error
            except (wire.WireError, OSError) as error:
                raise self._death(str(error)) from error
        if isinstance(reply, wire.FaultReply):
            raise self._fault(reply.reason[:60], reply.summary[:1000], excerpt=reply.excerpt, by_code=reply.by_code)
        if not isinstance(reply, kind):
            self._process.kill()
            raise self._fault("broke_the_protocol", f"the cell answered with a {type(reply).__name__}")
        return reply

    def _await_data(self, deadline: Deadline) -> None:
        """Wait until something can be read, watching the clock and the memory; then give the frame until the deadline.
        Raises TooBusy, after which the cell is dead, where it hardly had a processor until then."""
        self._end.settimeout(_POLL_S)
        while True:
            try:
                self._end.recv(1, socket.MSG_PEEK)
                self._end.settimeout(max(1.0, deadline.left_s))
                return
            except TimeoutError:
                if self._is_over(deadline):
                    raise
                self._killed_for = self._usage.excess(self._plan.memory_bytes)
                if self._killed_for is not None:
                    self._process.kill()

    def _is_over(self, deadline: Deadline) -> bool:
        deadline.look()
        try:
            return deadline.left_s < 0
        except TooBusy:
            self._process.kill()
            raise

    def _fault(self, reason: str, summary: str, *, excerpt: str = "", by_code: bool = True) -> CellFault:
        return CellFault(
            reason, summary, source=self._plan.name, excerpt=excerpt or self._process.tail(), by_code=by_code
        )

    def _hang(self, limit_s: float) -> CellFault:
        self._process.kill()
        return self._fault("hung", f"no answer within {limit_s:.0f} s; it was killed")

    def _death(self, what: str) -> CellFault:
        code = self._process.exit_code(2.0)
        self._process.kill()
        if code is None:
            return self._fault("broke_the_protocol", f"the cell spoke nonsense: {what}")
        if self._killed_for is not None:
            return self._fault(*self._killed_for)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return self._fault("crashed", f"its process ended with {how}")
