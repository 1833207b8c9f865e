"""A cell without a process: the session itself answers, on the CPU."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from tilewright.judge.cell_process import CellUsage
from tilewright.judge.client import Cell, CellFault
from tilewright.judge.reference_process.session import ReferenceSession
from tilewright.judge.wire import messages as wire

T = TypeVar("T")


class InProcessCell(Cell):
    """Answers as a reference cell does; faults are raised as a real cell's are."""

    def __init__(self) -> None:
        self._session = ReferenceSession("cpu")
        self.asked: list[Any] = []
        self.usage = CellUsage(os.getpid())

    @property
    def alive(self) -> bool:
        return True

    def wait_ready(self) -> None:
        return

    def ask(self, request: Any, kind: type[T], *, limit_s: float, descriptor: int | None = None) -> T:
        self.asked.append(request)
        reply = self._session.answer((request, -1 if descriptor is None else os.dup(descriptor)))
        if isinstance(reply, wire.FaultReply):
            raise CellFault(reply.reason, reply.summary, source="reference", by_code=reply.by_code)
        assert isinstance(reply, kind)
        return reply
