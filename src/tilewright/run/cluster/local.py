"""The engine without a cluster: threads of this process, a measuring place for each device, nothing to install."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, Queue
from threading import Event, Lock, Thread
from typing import Self

from ...edges.sandbox.offspring import end_offspring
from .engine import Reported
from .seat import Seat
from .task import ClusterNode, LostTask, TaskOrder

_POLL_S = 0.05


class LocalEngine:
    """`jobs` threads for each seat; those of one seat take turns to measure. A seat that goes under quarantine takes no
    more orders."""

    def __init__(self, seats: Sequence[Seat], *, jobs: int = 1, stop: Callable[[], None] = end_offspring) -> None:
        self._seats, self._jobs, self._stop = seats, jobs, stop
        self._busy: set[str] = set()
        self._waiting: list[TaskOrder] = []
        self._known: set[str] = set()
        self._reports: Queue[Reported] = Queue()
        self._lock, self._over = Lock(), Event()
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        self._threads = [Thread(target=self._begin, args=(seat,), daemon=True) for seat in self._seats]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for what runs; where an exception ends the block, that is ended first."""
        self._over.set()
        if kind is not None and self._busy:
            self._stop()
        for thread in self._threads:
            thread.join()
        for seat in self._seats:
            seat.close()

    def submit(self, order: TaskOrder) -> None:
        with self._lock:
            if order.name not in self._known:
                self._known.add(order.name)
                self._waiting.insert(0 if order.attempt else len(self._waiting), order)

    def cancel(self, key: str) -> None:
        with self._lock:
            self._waiting = [order for order in self._waiting if order.key != key]

    def reports(self, timeout_s: float) -> Sequence[Reported]:
        found: list[Reported] = []
        try:
            found.append(self._reports.get(timeout=timeout_s))
            while True:
                found.append(self._reports.get_nowait())
        except Empty:
            return found

    def nodes(self) -> tuple[ClusterNode, ...]:
        return tuple(seat.node for seat in self._seats)

    def _begin(self, seat: Seat) -> None:
        seat.begin()
        beside = [Thread(target=self._serve, args=(seat,), daemon=True) for _ in range(self._jobs - 1)]
        for thread in beside:
            thread.start()
        self._serve(seat)
        for thread in beside:
            thread.join()

    def _serve(self, seat: Seat) -> None:
        while not self._over.is_set() and seat.node.state == "ready":
            with self._lock:
                order = self._waiting.pop(0) if self._waiting else None
            if order is None:
                self._over.wait(_POLL_S)
                continue
            self._busy.add(order.name)
            try:
                self._reports.put(seat.run(order))
            except KeyboardInterrupt:  # this process is about to end
                return
            except Exception as error:  # whatever it is, the order is done elsewhere
                why = f"{type(error).__name__}: {error}"
                self._reports.put(LostTask(key=order.key, attempt=order.attempt, node=seat.node.name, why=why))
            finally:
                self._busy.discard(order.name)
