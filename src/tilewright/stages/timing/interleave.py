"""Interleaving: bursts of several implementations in random order, each call on contents that no call saw before as a
whole.

The judge asks for every call by itself: which slot is next, what changes in it, and whether the result will be looked
at, is not decided, and so can't be known in the cell, before the call before it is over. Each call is seen by two
clocks, the cell's around the call (its tick) and the judge's around the whole request.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from ...cell import wire
from ...edges.sandbox.cell import Cell, CellFault
from ...edges.sandbox.evictor import Evictor
from ...edges.sandbox.room import Room
from ...edges.sandbox.stirring import Stirring

CALL_LIMIT_S = 180.0
_BURST_S = 0.03
MOST_CALLS = 40
# After a parallel region the OpenMP threads of a process spin for some milliseconds before they sleep, and would take
# the processors from the next process's burst: on 2 idle cores (AMD EPYC, 2026-11-20), three processes in turn, the
# slowest tenth of the calls took 5.4 ms without this pause and 1.7 ms with it, the median 1.2-1.4 ms either way.
_SETTLE_S = {"cpu": 0.02, "cuda": 0.0}


# How long a GPU is kept busy before the first event: 30% longer than most launches of the round before took. It is the
# same for all in a round, since the judge's clock sees it. The slowest of the baselines decides, and the candidate up
# to twice as much: what it does on a stream of its own meanwhile is not seen. One H200, 2026-11-22: where each cell
# chose for itself, 100 us beyond its own stirring, the same three kernels took 10 us in one process and 42 us in
# another whose host was slower for a while; where one slow call moved it for the next, cheats hid behind it.
_LEAST_DELAY_NS, _MOST_DELAY_NS = 250e3, 1e6
_DELAY_SHARE, _DELAY_FADING, _MOST_CALLS_OF = 1.3, 0.8, 0.9
_MOST_OF_OURS = 2.0

T = TypeVar("T")
RowLook = Callable[[int, int], None]  # looks at what the call on a slot returned, by its number in the row (-1: last)
Renew = Callable[[int, bool], None]  # fills a slot with contents that were never there; if told to, with the last again


@dataclass(frozen=True, slots=True)
class Look:
    """What the judge does around a timed call that it verifies: `before` it, and `after` it with its slot, where it
    took less than `below_ns`."""

    before: Callable[[], None]
    after: Callable[[int], None]
    below_ns: float = math.inf


@dataclass(frozen=True, slots=True)
class Player:
    """One implementation to be timed: its name in the result, the cell that runs it, and how many calls in a row count
    as one."""

    name: str
    cell: Cell
    repeat: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Of each call its tick, what the judge's clock saw of it beyond that, and how long the device worked on."""

    ticks_ns: tuple[float, ...]
    unseen_s: tuple[float, ...]
    after_s: tuple[float, ...]


@dataclass(slots=True)
class Table:
    """Who plays, where, and what is known by now. `bursts` holds ticks in ns; `unseen` what the judge's clock saw of
    each of these calls beyond its tick, `after` how long the device worked on after it, both in s. Bursts with warm
    caches stand under `warm(name)`."""

    room: Room
    players: Sequence[Player]
    rng: random.Random
    evictor: Evictor | None = None  # None: caches stay as they are
    stirring: Stirring | None = None  # None: contents stay as they are
    calls: dict[str, int] = field(default_factory=dict)
    bursts: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    unseen: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    after: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    watched: Cell | None = None  # whose processor time is counted while others play
    most_calls: int = MOST_CALLS  # in a burst
    aside_s: float = 0.0  # that time
    others_s: float = 0.0  # and how long the others played
    delay_ns: float = _LEAST_DELAY_NS
    _baselines_ns: float = _LEAST_DELAY_NS  # what the baselines alone need of it
    _launched: list[tuple[Cell, float]] = field(default_factory=list)  # ns that calls took since the delay was settled
    _dealt: list[Cell] = field(default_factory=list)

    def call(
        self, player: Player, *, cold: bool = True, phase: str = "whole", slot: int = -1, stir: bool = True
    ) -> tuple[int, wire.Tick, float]:
        """One timed call on a slot (a random one if none is named), which is stirred before: the slot, the tick, and
        the wall time in s that the judge saw."""
        request = self._request(player, cold=cold, phase=phase, slot=slot, stir=stir)
        self.room.swap(request.swaps)
        tick, wall_s = self._ask(player.cell, request, wire.Tick, cold=cold)
        self._take(player.cell, tick)
        return request.slot, tick, wall_s

    def row(
        self, player: Player, *, calls: int, keep: bool, look: RowLook | None = None
    ) -> tuple[tuple[float, ...], float]:
        """Calls in a row with warm caches, of which the judge hears when all are over: their ticks in ns, and the wall
        time in s of them all. With `look`, one of them is looked at (the last, unless all are kept); which one is
        decided afterwards."""
        requests = tuple(self._request(player, cold=False) for _ in range(calls))
        ticks, wall_s = self._ask(player.cell, wire.TimedCalls(calls=requests, keep=keep), wire.Ticks, cold=False)
        if len(ticks.ticks) != calls:
            self._refuse(player.cell, f"its clock tells of {len(ticks.ticks)} of {calls} calls")
        for tick in ticks.ticks:
            self._take(player.cell, tick)
        looked = self.rng.randrange(calls) if keep else calls - 1
        for number, request in enumerate(requests):
            self.room.swap(request.swaps)
            if look is not None and number == looked:
                look(request.slot, number if keep else -1)
        return tuple(tick.ns for tick in ticks.ticks), wall_s

    def _request(
        self, player: Player, *, cold: bool, phase: str = "whole", slot: int = -1, stir: bool = True
    ) -> wire.TimedCall:
        slot = self.rng.randrange(self.room.slots) if slot < 0 else slot
        swaps = self.stirring.swaps(slot) if self.stirring is not None and stir else ()
        return wire.TimedCall(
            slot=slot, swaps=swaps, warm=not cold, phase=phase, repeat=player.repeat, delay_ns=self.delay_ns
        )

    def _ask(self, cell: Cell, request: object, kind: type[T], *, cold: bool) -> tuple[T, float]:
        """The answer to a request for timed calls, and how long that took by the judge's clock, in s."""
        self._deal(cell)
        if cold and self.evictor is not None:
            self.evictor.clear(cell, limit_s=CALL_LIMIT_S)
        else:
            cell.do(wire.Clear(flush_bytes=0), limit_s=CALL_LIMIT_S)
        started = time.perf_counter()
        answer = cell.ask(request, kind, limit_s=CALL_LIMIT_S)
        wall_s = time.perf_counter() - started
        if self.evictor is not None:
            self.evictor.require_walked()
        return answer, wall_s

    def _take(self, cell: Cell, tick: wire.Tick) -> None:
        if not (0 < tick.ns < 1e15 and 0 <= tick.launched_ns < 1e15 and 0 <= tick.after_ns < 1e15):
            self._refuse(
                cell,
                f"its clock says that a call took {tick.ns} ns, {tick.launched_ns} to launch, {tick.after_ns} after it",
            )
        self._launched.append((cell, tick.launched_ns))

    def _refuse(self, cell: Cell, why: str) -> NoReturn:
        cell.kill()
        raise CellFault("clock_disagrees", why, source=cell.plan.name)

    def shuffled(self, players: Sequence[Player]) -> list[Player]:
        """The players of a round in random order. For them the delay is settled anew, by what launches took before."""
        by_cell: dict[Cell, list[float]] = {}
        for cell, ns in self._launched:
            by_cell.setdefault(cell, []).append(ns)
        self._launched.clear()
        needed = {c: _DELAY_SHARE * sorted(seen)[int(_MOST_CALLS_OF * (len(seen) - 1))] for c, seen in by_cell.items()}
        ours_ns = needed.pop(self.watched, 0.0) if self.watched is not None else 0.0
        theirs_ns = max([*needed.values(), _LEAST_DELAY_NS, _DELAY_FADING * self._baselines_ns])
        self._baselines_ns = min(theirs_ns, _MOST_DELAY_NS)
        self.delay_ns = min(max(theirs_ns, min(ours_ns, _MOST_OF_OURS * theirs_ns)), _MOST_DELAY_NS)
        return self.rng.sample(list(players), len(players))

    def _deal(self, cell: Cell) -> None:
        if cell not in self._dealt:
            slots = tuple(self.room.slot(i) for i in range(self.room.slots))
            cell.do(wire.Deal(args=self.room.described.args, slots=slots))
            if self.evictor is not None:
                self.evictor.admit(cell)
            self._dealt.append(cell)

    @contextmanager
    def _watching(self, player: Player) -> Iterator[None]:
        """What the watched cell does in the block, which is another's turn."""
        if self.watched is None or player.cell is self.watched:
            yield
            return
        before_s, started = self.watched.cpu_s(), time.monotonic()
        yield
        self.others_s += time.monotonic() - started
        self.aside_s += self.watched.cpu_s() - before_s

    def burst(self, player: Player, *, calls: int, cold: bool = True, look: Look | None = None) -> None:
        """A turn, kept under the player's name. With `look`, a random call is the last and looked at."""
        calls = self.rng.randint(1, calls) if look is not None else calls
        turn = self.turn(player, calls=calls, cold=cold, look=look)
        name = player.name if cold else warm(player.name)
        self.bursts.setdefault(name, []).append(turn.ticks_ns)
        self.unseen.setdefault(name, []).append(turn.unseen_s)
        self.after.setdefault(name, []).append(turn.after_s)

    def turn(
        self, player: Player, *, calls: int, cold: bool = True, phase: str = "whole", look: Look | None = None
    ) -> Turn:
        """Calls in a row, of which nothing is kept. The processors come to rest before, and where memory is tight the
        player gives its own back afterwards. With `look`, the last call is looked at."""
        time.sleep(_SETTLE_S[self.room.device])
        if self.room.tight:
            self.call(player, phase=phase)  # what it gave back is its own again
        seen: list[tuple[float, float, float]] = []
        with self._watching(player):
            for number in range(calls):
                looking = look if number == calls - 1 else None
                if looking is not None:
                    looking.before()
                slot, tick, wall_s = self.call(player, cold=cold, phase=phase)
                seen.append((tick.ns, wall_s - tick.ns / 1e9, tick.after_ns / 1e9))
                if looking is not None:
                    looking.after(slot)
        if self.room.tight:
            player.cell.do(wire.Drop())
        ticks_ns, unseen_s, after_s = zip(*seen, strict=True)
        return Turn(ticks_ns=ticks_ns, unseen_s=unseen_s, after_s=after_s)

    def again(
        self, player: Player, slot: int, *, renew: Renew | None = None, look: Look | None = None
    ) -> tuple[float, float]:
        """Two calls on one slot whose contents are new: the tick of each in ns. With `renew`, both follow a call and
        the work of a renewal: contents are new as a whole before the first, and the same again before the second.
        Rows change before every call where they can; without `renew`, before the second alone. With `look`, the first
        is looked at."""
        rows = self.stirring is not None and self.stirring.changes_rows
        if renew is not None:
            self._renewed(player, slot, renew, again=True, stir=rows)
            first = self._renewed(player, slot, renew, again=False, stir=rows, look=look)
            return first, self._renewed(player, slot, renew, again=True, stir=rows)
        time.sleep(_SETTLE_S[self.room.device])
        first = self._looked(player, slot, stir=False, look=look)
        return first, self._looked(player, slot, stir=rows)

    def _renewed(
        self, player: Player, slot: int, renew: Renew, *, again: bool, stir: bool, look: Look | None = None
    ) -> float:
        renew(slot, again)
        time.sleep(_SETTLE_S[self.room.device])
        return self._looked(player, slot, stir=stir, look=look)

    def _looked(self, player: Player, slot: int, *, stir: bool, look: Look | None = None) -> float:
        """The tick of a call on the slot, in ns."""
        with self._watching(player):
            if look is not None:
                look.before()
            _, tick, _ = self.call(player, slot=slot, stir=stir)
            if look is not None and tick.ns < look.below_ns:
                look.after(slot)
        return tick.ns

    def warm_up(self, players: Sequence[Player] = ()) -> None:
        """Five calls each (of all, if none are named), of which nothing is kept: what is compiled or allocated on first
        use is over, and how many calls make a burst is known."""
        for player in players or self.players:
            seen = [self.call(player) for _ in range(5)][2:]
            per_call_s = sorted(max(wall_s, tick.ns / 1e9) for _, tick, wall_s in seen)[1]
            self.calls[player.name] = max(1, min(self.most_calls, round(_BURST_S / per_call_s)))
            self.bursts.setdefault(player.name, [])

    def round(self, looks: Mapping[str, Look] | None = None) -> None:
        """One burst of everybody, in random order."""
        for player in self.shuffled(self.players):
            self.burst(player, calls=self.calls[player.name], look=(looks or {}).get(player.name))

    def all_bursts(self) -> Mapping[str, tuple[tuple[float, ...], ...]]:
        return {name: tuple(bursts) for name, bursts in self.bursts.items()}


def warm(name: str) -> str:
    """Under which name a player's calls with warm caches are kept."""
    return f"{name}_warm"
