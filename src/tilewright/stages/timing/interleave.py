"""Interleaving: bursts of several implementations in random order, on contents and addresses that keep changing."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...cell import wire
from ...edges.sandbox.cell import Cell
from ...edges.sandbox.room import Room

BURST_LIMIT_S = 180.0
_BURST_S = 0.03  # aimed at for one burst, flushes included
_MAX_CALLS = 40
# After a parallel region the OpenMP threads of a process spin for some milliseconds before they sleep, and would take
# the processors from the next process's burst: on 2 idle cores (AMD EPYC, 2026-11-20), three processes in turn, the
# slowest tenth of the calls took 5.4 ms without this pause and 1.7 ms with it, the median 1.2-1.4 ms either way.
_SETTLE_S = {"cpu": 0.02, "cuda": 0.0}


@dataclass(frozen=True, slots=True)
class Player:
    """One implementation to be timed: its name in the result, and the cell that runs it."""

    name: str
    cell: Cell


@dataclass(slots=True)
class Table:
    """Who plays, where, and what is known by now."""

    room: Room
    players: Sequence[Player]
    rng: random.Random
    flush_bytes: int
    calls: dict[str, int] = field(default_factory=dict)
    bursts: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    contents: list[int] = field(default_factory=list)  # pool set by slot

    def shuffle_contents(self) -> None:
        """Put a pool set, drawn anew, into every slot."""
        self.contents = [self.rng.randrange(self.room.pool) for _ in range(self.room.slots)]
        for slot, k in enumerate(self.contents):
            self.room.place(k, slot)

    def burst(
        self, player: Player, *, calls: int, keep: int = -1, cold: bool = True
    ) -> tuple[tuple[float, ...], tuple[int, ...], float]:
        """Samples in ns, the slots used in order, and the wall time in s that the judge saw."""
        order = tuple(self.rng.randrange(self.room.slots) for _ in range(calls))
        request = wire.Burst(
            args=self.room.described.args,
            slots=tuple(self.room.slot(i) for i in range(self.room.slots)),
            order=order,
            keep=keep,
            flush_bytes=self.flush_bytes if cold else 0,
        )
        time.sleep(_SETTLE_S[self.room.device])
        started = time.perf_counter()
        ticks = player.cell.ask(request, wire.Ticks, limit_s=BURST_LIMIT_S)
        wall_s = time.perf_counter() - started
        if len(ticks.samples_ns) != calls or not all(0 < s < 1e15 for s in ticks.samples_ns):
            raise ValueError(f"{player.name}: {len(ticks.samples_ns)} samples for {calls} calls")
        return ticks.samples_ns, order, wall_s

    def warm_up(self) -> None:
        """Two bursts each: what is compiled or allocated on first use is over, and the length of a burst is chosen."""
        self.shuffle_contents()
        for player in self.players:
            self.burst(player, calls=2)
            samples, _, wall_s = self.burst(player, calls=3)
            per_call_s = max(wall_s / 3, sorted(samples)[1] / 1e9)
            self.calls[player.name] = max(1, min(_MAX_CALLS, round(_BURST_S / per_call_s)))
            self.bursts.setdefault(player.name, [])

    def round(self) -> None:
        """One burst of everybody, in random order, on new contents."""
        self.shuffle_contents()
        for player in self.rng.sample(list(self.players), len(self.players)):
            samples, _, _ = self.burst(player, calls=self.calls[player.name])
            self.bursts[player.name].append(samples)

    def all_bursts(self) -> Mapping[str, tuple[tuple[float, ...], ...]]:
        return {name: tuple(bursts) for name, bursts in self.bursts.items()}
