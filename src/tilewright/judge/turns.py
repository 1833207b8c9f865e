"""The device in turns: one run at a time holds it, and keeps account of how long and what for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..edges.gpu.lease import lease
from ..facts.outcome import Station


class Turns:
    """The turns that one judge takes on its device."""

    def __init__(self, device: str, say: Callable[[str], None]) -> None:
        self._device, self._say = device, say
        self._since_ns = time.time_ns()
        self._held_s: dict[str, float] = {}

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """The device, held for the block; waits for whoever has it, and for older judges. What waits counts for
        nothing."""
        with lease(self._device, self._say, since_ns=self._since_ns):
            started = time.monotonic()
            try:
                yield
            finally:
                self._held_s[name] = self._held_s.get(name, 0.0) + time.monotonic() - started

    def held(self) -> tuple[Station, ...]:
        """For what the device was held since this was last asked, and how long."""
        found, self._held_s = self._held_s, {}
        return tuple(Station(name=name, seconds=seconds) for name, seconds in found.items())
