"""A Cell: a child process beside the judge that runs code nobody trusts, asked over one private line (judge.line)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..facts.errors import HarnessError
from .cell_process import CellPlan as CellPlan
from .cell_process import CellProcess, CellUsage
from .line import CellFault as CellFault
from .line import CellLine
from .wire import messages as wire

T = TypeVar("T")
_HELLO_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLimits:
    """What code under test may take, before it is stopped. `memory_bytes` of 0: what the machine allows."""

    build_s: float = 300.0
    call_s: float = 120.0
    memory_bytes: int = 0


class Cell(AbstractContextManager["Cell"]):
    """Starts at once; is ready when `wait_ready` returns. Not thread-safe. `usage`: what its processes take."""

    def __init__(self, plan: CellPlan, outer: Mapping[str, str] | None = None) -> None:
        self.plan = plan
        self.protections: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self.spent_s: dict[str, float] = {}  # waited for answers, by kind of request
        self._ready = False
        self.process = CellProcess(plan, os.environ if outer is None else outer)
        self.usage = CellUsage(self.process.pid)
        self._line = CellLine(plan, self.process, self.usage)

    def wait_ready(self) -> None:
        """Return once the cell has said hello; HarnessError when it does not come up."""
        if self._ready:
            return
        try:
            hello = self._line.receive(wire.Hello, _HELLO_S)
        except CellFault as fault:
            self.kill()
            raise HarnessError(f"a cell did not start: {fault.summary} {fault.excerpt}".strip()) from fault
        self.protections, self.missing = hello.protections, hello.missing
        self._ready = True

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        """Send a request and wait for its answer; raises CellFault, after which a dead or hung cell is killed."""
        self.wait_ready()
        started = time.monotonic()
        try:
            self._line.send(request, descriptor)
            return self._line.receive(kind, limit_s)
        except KeyboardInterrupt:  # nobody waits for what it works on, nor takes that for another answer
            self.kill()
            raise
        finally:
            name = type(request).__name__
            self.spent_s[name] = self.spent_s.get(name, 0.0) + time.monotonic() - started

    def do(self, request: Any, *, limit_s: float = 60.0) -> None:
        self.ask(request, wire.Done, limit_s=limit_s)

    def post(self, request: Any) -> None:
        """Send a request whose answer `collect` takes later; answers come in the order of the requests."""
        self._line.send(request)

    def collect(self, kind: type[T], *, limit_s: float) -> T:
        self.wait_ready()
        return self._line.receive(kind, limit_s)

    def map_arena(self, message: wire.MapArena, descriptor: int) -> None:
        if descriptor >= 0:
            self.usage.arenas[os.fstat(descriptor).st_ino] = message.size_bytes
        self.ask(message, wire.Done, limit_s=60.0, descriptor=descriptor if descriptor >= 0 else None)

    @property
    def alive(self) -> bool:
        return self.process.alive

    def kill(self) -> None:
        """End the process and all that descends from it. Safe to call twice."""
        self.process.kill()

    def close(self) -> None:
        """Kill, and remove the private folder."""
        self.process.close()

    def __exit__(self, *exc: object) -> None:
        self.close()
