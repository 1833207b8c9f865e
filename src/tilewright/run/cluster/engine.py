"""The interface between a campaign and what schedules its tasks: the local pool, Ray, or workers on a shared folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from ...facts.errors import Pending
from .task import ClusterNode, LostTask, TaskOrder, TaskResult

Reported = TaskResult | LostTask


class EngineGone(Pending):
    """The engine itself is gone, such as Ray's head: all results are kept, and the same command goes on."""


class Engine(Protocol):
    """Takes orders and gives each to one node at a time. Used by one thread; opened by `with`, at whose end everything
    that the engine started has ended."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, /, *_: object) -> None: ...

    def submit(self, order: TaskOrder) -> None:
        """Queue the order, a further attempt before what waits; nothing where this attempt of this key was submitted
        before."""

    def cancel(self, key: str) -> None:
        """Withdraw the key's orders that no node has begun; one that runs is left to end."""

    def reports(self, timeout_s: float) -> Sequence[Reported]:
        """What came since the last call, after at most `timeout_s` seconds where nothing has. Each attempt that a node
        took is reported once. Raises EngineGone."""

    def nodes(self) -> tuple[ClusterNode, ...]:
        """All nodes that the engine has known, those that were lost among them."""
