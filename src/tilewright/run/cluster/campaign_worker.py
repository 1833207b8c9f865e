"""A worker of a campaign on a shared folder: one measuring place that takes orders until the campaign is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread

from ...edges.bundle import NodeQueue
from ...edges.sandbox.offspring import end_offspring
from .seat import Seat
from .shared import BEAT_S
from .task import ClusterNode, TaskOrder, TaskResult

_POLL_S = 0.5
_ALONE_S = 600.0  # without a sign of life of the driver, after which a node leaves


@dataclass(kw_only=True)
class CampaignWorker:
    """`jobs` orders at once; they take turns to measure. `serve` returns how many orders were done."""

    queue: NodeQueue
    seat: Seat
    say: Callable[[str], None]
    jobs: int = 1
    beat_s: float = BEAT_S
    alone_s: float = _ALONE_S
    stop: Callable[[], None] = end_offspring
    clock: Callable[[], float] = time.monotonic
    _over: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _beats: int = 0
    _done: int = 0

    def serve(self) -> int:
        """Until the campaign is over, its driver is gone, or the device is under quarantine."""
        beating = Thread(target=self._beat, daemon=True)
        beating.start()
        try:
            node = self.seat.begin()
            self._sign(node)
            self.say(f"{node.name}: {node.state}{f': {node.why}' if node.why else ''}")
            beside = [Thread(target=self._take, daemon=True) for _ in range(self.jobs - 1)]
            for thread in beside:
                thread.start()
            self._take()
            for thread in beside:
                thread.join()
            return self._done
        finally:
            self._over.set()
            beating.join()
            node = self.seat.node
            self._sign(node if node.state == "quarantined" else replace(node, state="left"))

    def _take(self) -> None:
        while not self._over.is_set() and self.seat.node.state == "ready" and not self.queue.over():
            name = next((n for n in self.queue.waiting() if self.queue.claim(n, self.seat.node.worker)), None)
            if name is None:
                self._over.wait(_POLL_S)
                continue
            try:
                result = self._result(name)
            except KeyboardInterrupt:  # the campaign is over, or this process is about to end
                return
            self.queue.reply(name, result.dumps())
            self._done += 1
            self.say(f"{name}: {result.fault or result.task.get('status') or 'done'} ({result.wall_s:.1f} s)")

    def _result(self, name: str) -> TaskResult:
        try:
            return self.seat.run(TaskOrder.loads(self.queue.order(name) or ""))
        except Exception as error:  # whatever it is, the order is done elsewhere, and this node takes the next
            key, _, attempt = name.rpartition(".")
            fault = f"{type(error).__name__}: {error}"
            return TaskResult(
                key=key, attempt=int(attempt), node=self.seat.node, task={}, wall_s=0.0, fault=fault
            )  # fmt: skip

    def _beat(self) -> None:
        """Signs of life, and a look whether the driver gives any."""
        driver, seen_at, signed_at = self.queue.driver(), self.clock(), float("-inf")
        while not self._over.is_set():
            if self.clock() - signed_at >= self.beat_s:
                signed_at = self.clock()
                self._sign(self.seat.node)
            now = self.queue.driver()
            if now != driver:
                driver, seen_at = now, self.clock()
            alone = self.clock() - seen_at > self.alone_s
            if alone or self.queue.over():
                self.say("the campaign's driver gives no sign of life; leaving" if alone else "the campaign is over")
                self._over.set()
                self.stop()
            self._over.wait(_POLL_S)

    def _sign(self, node: ClusterNode) -> None:
        with self._lock, suppress(OSError):  # the next sign comes soon
            self._beats += 1
            self.queue.beat(node.name, replace(node, beat=self._beats).dumps())
