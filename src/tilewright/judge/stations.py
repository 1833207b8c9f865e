"""How long each station of a judgement took, and in whose hands: told apart by the requests that cells answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..facts.outcome import Station
from .client import Cell

# What a request to a baseline's cell, or to a candidate's, is called in a report; the rest of a station is the judge's
# own: placing and comparing.
_BASELINE = {
    "MakeInputs": "draw", "Call": "reference", "Store": "reference", "Truth": "truth", "Slack": "truth",
    "Amplify": "truth", "Attain": "truth",
    "ConstructCase": "construct", "Redraw": "state", "StoreState": "state", "LoadState": "state",
    "TimedCall": "timed baseline", "TimedCalls": "timed baseline", "Clear": "evicting caches", "Drop": "memory",
}  # fmt: skip
_CANDIDATE = {
    "Construct": "construct", "Call": "call", "Store": "call", "HoldTimed": "call", "LoadState": "state",
    "StoreState": "state", "TimedCall": "timed calls", "TimedCalls": "timed calls", "Clear": "evicting caches",
    "Drop": "memory", "Profile": "profile",
}  # fmt: skip
_OWN = "compare"


class Stations:
    """Collects stations in the order in which they begin."""

    def __init__(self) -> None:
        self._found: list[Station] = []

    def add(self, name: str, seconds: float) -> None:
        self._found.append(Station(name=name, seconds=seconds))

    @contextmanager
    def station(self, name: str, *baselines: Cell, candidate: Cell) -> Iterator[None]:
        """What the block takes, split by who was busy."""
        cells, called = (*baselines, candidate), (*(_BASELINE for _ in baselines), _CANDIDATE)
        before = [dict(cell.spent_s) for cell in cells]
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        parts: dict[str, float] = {}
        for cell, earlier, names in zip(cells, before, called, strict=True):
            for kind, spent_s in cell.spent_s.items():
                part = names.get(kind, "other requests")
                parts[part] = parts.get(part, 0.0) + spent_s - earlier.get(kind, 0.0)
        parts[_OWN] = max(0.0, seconds - sum(parts.values()))
        told = tuple((part, spent_s) for part, spent_s in parts.items() if spent_s > 0)
        self._found.append(Station(name=name, seconds=seconds, parts=told))

    @property
    def found(self) -> tuple[Station, ...]:
        return tuple(self._found)
