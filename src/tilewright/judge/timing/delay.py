"""How long a GPU is kept busy before the clock of a timed call starts, so that its launches are hidden."""

from __future__ import annotations

from ..client import Cell

# How long a GPU is kept busy before the first event: 30% longer than most launches of the round before took. It is the
# same for all in a round, since the judge's clock sees it. The slowest of the baselines decides, and the candidate up
# to twice as much: what it does on a stream of its own meanwhile is not seen. One H200, 2026-11-22: where each cell
# chose for itself, 100 us beyond its own stirring, the same three kernels took 10 us in one process and 42 us in
# another whose host was slower for a while; where one slow call moved it for the next, cheats hid behind it.
_LEAST_DELAY_NS, _MOST_DELAY_NS = 250e3, 1e6
_DELAY_SHARE, _DELAY_FADING, _MOST_CALLS_OF = 1.3, 0.8, 0.9
_MOST_OF_OURS = 2.0


class Delay:
    """`ns` is that time."""

    def __init__(self) -> None:
        self.ns = _LEAST_DELAY_NS
        self._baselines_ns = _LEAST_DELAY_NS  # what the baselines alone need of it
        self._launched: dict[Cell, list[float]] = {}  # ns that calls took since the delay was settled

    def note(self, cell: Cell, launched_ns: float) -> None:
        self._launched.setdefault(cell, []).append(launched_ns)

    def settle(self, watched: Cell | None) -> None:
        """Choose it anew by what launches took before; of the candidate's cell, `watched`, within bounds."""
        seen, self._launched = self._launched, {}
        needed = {c: _DELAY_SHARE * sorted(ns)[int(_MOST_CALLS_OF * (len(ns) - 1))] for c, ns in seen.items()}
        ours_ns = needed.pop(watched, 0.0) if watched is not None else 0.0
        theirs_ns = max([*needed.values(), _LEAST_DELAY_NS, _DELAY_FADING * self._baselines_ns])
        self._baselines_ns = min(theirs_ns, _MOST_DELAY_NS)
        self.ns = min(max(theirs_ns, min(ours_ns, _MOST_OF_OURS * theirs_ns)), _MOST_DELAY_NS)
