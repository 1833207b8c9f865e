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
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from ..client import Cell, CellFault
from ..memory.evictor import Evictor
from ..memory.images import Image
from ..memory.room import Room
from ..memory.stirring import Stirring
from ..wire import messages as wire

CALL_LIMIT_S = 180.0
_BURST_S = 0.03
MOST_CALLS = 40
# After a parallel region the OpenMP threads of a process spin for some milliseconds before they sleep, and would take
# the processors from the next process's burst: on 2 idle cores (AMD EPYC, 2026-11-20), three processes in turn, the
# slowest tenth of the calls took 5.4 ms without this pause and 1.7 ms with it, the median 1.2-1.4 ms either way.
_SETTLE_S = {"cpu": 0.02, "cuda": 0.0}
_REDRAW_SHARE, _OFTEN, _SELDOM = 0.25, 0.5, 0.1  # of the time, state is redrawn often; else seldom


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
    """What the judge does after a timed call that it verifies, with the pool set that the call was made on, where it
    took less than `below_ns`. Before such a call it does nothing that it does not do before any other."""

    after: Callable[[int], None]
    below_ns: float = math.inf


@dataclass(frozen=True, slots=True)
class Redraw:
    """How the watched player's parameters and buffers come to be other ones in the middle of a turn, and how masks and
    indices among them are put back after it. When that is done hangs on nothing else."""

    renew: Callable[[], None]
    calm: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Player:
    """One implementation to be timed: its name in the result, the cell that runs it, how many calls in a row count
    as one, and the names of what its calls move, which is put back before each: buffers, and plain attributes."""

    name: str
    cell: Cell
    repeat: int = 1
    moved: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Shown:
    """What was shown last: pool sets, in slots from the first on; on the CPU in an image."""

    sets: tuple[int, ...]
    first_slot: int
    image: Image | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Of each call its tick, what the judge's clock saw of it beyond that, how long the device worked on, and how long
    it took the cell to get ready for it. Of a call, on the average: `cpu_s` is the processor time of the cell's
    processes beyond what they used in its tick, `used_s` that."""

    ticks_ns: tuple[float, ...]
    unseen_s: tuple[float, ...]
    after_s: tuple[float, ...]
    between_s: tuple[float, ...]
    cpu_s: float
    used_s: float


@dataclass(slots=True)
class Table:
    """Who plays, where, and what is known by now. `bursts` holds ticks in ns; `unseen` what the judge's clock saw of
    each of these calls beyond its tick, `after` how long the device worked on after it, `between` how long its cell
    took to get ready for it, `cpu` and `used` its processor time outside and inside of a burst's ticks, a call, all in
    s. Bursts with warm caches stand under `warm(name)`."""

    room: Room
    players: Sequence[Player]
    rng: random.Random
    evictor: Evictor | None = None  # None: caches stay as they are
    stirring: Stirring | None = None  # of pool sets, before each call; None: contents stay as they are
    row_stirring: Stirring | None = None  # of slots, between calls in a row
    fresh: Callable[[int], None] | None = None  # draws so many pool sets anew
    redraw: Redraw | None = None
    calls: dict[str, int] = field(default_factory=dict)
    bursts: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    unseen: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    after: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    between: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, list[float]] = field(default_factory=dict)
    watched: Cell | None = None  # whose processor time is counted while others play
    most_calls: int = MOST_CALLS  # in a burst
    aside_s: float = 0.0  # that time
    others_s: float = 0.0  # and how long the others played
    delay_ns: float = _LEAST_DELAY_NS
    _baselines_ns: float = _LEAST_DELAY_NS  # what the baselines alone need of it
    _launched: list[tuple[Cell, float]] = field(default_factory=list)  # ns that calls took since the delay was settled
    redraw_s: float = 0.0  # spent on it
    _began: float = field(default_factory=time.monotonic)
    _dealt: list[Cell] = field(default_factory=list)
    _left: dict[str, list[int]] = field(default_factory=dict)  # pool sets that a player has not seen in this round
    _fresh_sets: int = 0  # pool sets that were drawn for this round; 0: all
    _shown: _Shown | None = None
    _between_s: float = 0.0  # of the last call

    def call(
        self, player: Player, *, cold: bool = True, phase: str = "whole", slot: int = -1, stir: bool = True
    ) -> tuple[int, wire.Tick, float]:
        """One timed call on a pool set that this player has not seen in this round, in a random slot, or on the set and
        in the slot of this number: the set, the tick, and the wall time in s that the judge saw. Contents are shown
        when all else is ready, at the last moment before the clock."""
        number = slot if slot >= 0 else self._next_set(player)
        slot = slot if slot >= 0 else self.rng.randrange(self.room.slots)
        if stir and self.stirring is not None:
            self.room.swap(self.stirring.swaps(number))
        request = wire.TimedCall(
            slot=slot, swaps=(), warm=not cold, phase=phase, repeat=player.repeat, delay_ns=self.delay_ns
        )
        self._deal(player)
        tick, wall_s = self._ask_showing(player, request, number, cold=cold)
        self._take(player.cell, tick)
        return number, tick, wall_s

    def _next_set(self, player: Player) -> int:
        left = self._left.setdefault(player.name, [])
        if not left:
            count = self._fresh_sets or self.room.pool
            left += self.rng.sample(range(count), count)
        return left.pop()

    def _ask_showing(
        self, player: Player, request: wire.TimedCall, number: int, *, cold: bool
    ) -> tuple[wire.Tick, float]:
        """The answer to a timed call on a pool set, and how long that took by the judge's clock, in s. On the CPU the
        set's image goes with the request. On a GPU the judge writes to the slot, and the cell evicts caches then."""
        image = self._show((number,), request.slot)
        self._clear(player, cold=cold)
        if image is not None:
            request = replace(request, lay_offset=image.offset, lay_bytes=image.size_bytes)
        elif self.room.device == "cuda":
            request = self.evictor.before(request) if cold and self.evictor is not None else request
            self.room.place(number, request.slot)
        return self._timed(player.cell, request, wire.Tick, descriptor=image.descriptor if image else None)

    def _show(self, sets: tuple[int, ...], first_slot: int) -> Image | None:
        """The image of these pool sets, if they are shown in one."""
        if self._shown is not None and self._shown.image is not None:
            self._shown.image.close()
        self._shown = _Shown(sets, first_slot, self.room.image(sets, first_slot))
        return self._shown.image

    def changed_input(self) -> int:
        """The first input, of what was shown last, that is not what the judge has put there; -1 where none is."""
        if self._shown is None:
            return -1
        places = enumerate(self._shown.sets, self._shown.first_slot)
        return max(self.room.changed_input(k, slot, self._shown.image) for slot, k in places)

    def row(
        self, player: Player, *, calls: int, keep: bool, look: RowLook | None = None
    ) -> tuple[tuple[float, ...], float]:
        """Calls in a row with warm caches, of which the judge hears when all are over: their ticks in ns, and the wall
        time in s of them all. With `look`, one of them is looked at (the last, unless all are kept); which one is
        decided afterwards."""
        requests = tuple(self._in_a_row(player) for _ in range(calls))
        self._deal(player)
        self._show_all(player.cell)
        self._clear(player, cold=False)
        row = wire.TimedCalls(calls=requests, keep=keep)
        ticks, wall_s = self._timed(player.cell, row, wire.Ticks)
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

    def _in_a_row(self, player: Player) -> wire.TimedCall:
        slot = self.rng.randrange(self.room.slots)
        swaps = self.row_stirring.swaps(slot) if self.row_stirring is not None else ()
        return wire.TimedCall(slot=slot, swaps=swaps, warm=True, repeat=player.repeat, delay_ns=self.delay_ns)

    def _show_all(self, cell: Cell) -> None:
        """Show in every slot the pool set of its number: rows change places between them in the row."""
        sets = tuple(range(self.room.slots))
        image = self._show(sets, 0)
        if image is not None:
            request = wire.Lay(offset=image.offset, size_bytes=image.size_bytes)
            cell.ask(request, wire.Done, limit_s=CALL_LIMIT_S, descriptor=image.descriptor)
        elif self.room.device == "cuda":
            for number in sets:
                self.room.place(number, number)

    def _clear(self, player: Player, *, cold: bool) -> None:
        """The same before every timed call: the last result is let go, state that calls move is put back, and, before
        `cold` ones, caches are evicted (on a GPU with the call itself)."""
        given = tuple(a for a in self.room.state.attributes if a.name in player.attributes) if player.attributes else ()
        started = time.perf_counter()
        if cold and self.evictor is not None and self.room.device == "cpu":
            self.evictor.clear(player.cell, attributes=given, limit_s=CALL_LIMIT_S)
        else:
            player.cell.do(wire.Clear(flush_bytes=0, attributes=given), limit_s=CALL_LIMIT_S)
        self._between_s = time.perf_counter() - started

    def _timed(self, cell: Cell, request: object, kind: type[T], *, descriptor: int | None = None) -> tuple[T, float]:
        """The answer to a request for timed calls, and how long that took by the judge's clock, in s."""
        started = time.perf_counter()
        answer = cell.ask(request, kind, limit_s=CALL_LIMIT_S, descriptor=descriptor)
        wall_s = time.perf_counter() - started
        if self.evictor is not None:
            if isinstance(request, wire.TimedCall) and isinstance(answer, wire.Tick):
                self.evictor.note(cell, request, answer)
            self.evictor.require_walked()
        return answer, wall_s

    def _take(self, cell: Cell, tick: wire.Tick) -> None:
        others = (tick.launched_ns, tick.after_ns, tick.cpu_ns)
        if not (0 < tick.ns < 1e15 and all(0 <= ns < 1e15 for ns in others)):
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

    def _deal(self, player: Player) -> None:
        if player.cell not in self._dealt:
            slots = tuple(self.room.slot(i) for i in range(self.room.slots))
            state = self.room.state.before(player.moved) if player.moved else ()
            player.cell.do(wire.Deal(args=self.room.described.args, slots=slots, moved=player.moved, state=state))
            if self.evictor is not None:
                self.evictor.admit(player.cell)
            self._dealt.append(player.cell)

    @contextmanager
    def _watching(self, player: Player) -> Iterator[None]:
        """What the watched cell does in the block, which is another's turn."""
        if self.watched is None or player.cell is self.watched:
            yield
            return
        before_s, started = self.watched.usage.cpu_s(), time.monotonic()
        yield
        self.others_s += time.monotonic() - started
        self.aside_s += self.watched.usage.cpu_s() - before_s

    def burst(self, player: Player, *, calls: int, cold: bool = True, look: Look | None = None) -> None:
        """A turn, kept under the player's name. With `look`, a random call is the last and looked at."""
        calls = self.rng.randint(1, calls) if look is not None else calls
        turn = self.turn(player, calls=calls, cold=cold, look=look)
        name = player.name if cold else warm(player.name)
        self.bursts.setdefault(name, []).append(turn.ticks_ns)
        self.unseen.setdefault(name, []).append(turn.unseen_s)
        self.after.setdefault(name, []).append(turn.after_s)
        self.between.setdefault(name, []).append(turn.between_s)
        self.cpu.setdefault(name, []).append(turn.cpu_s)
        self.used.setdefault(name, []).append(turn.used_s)

    def turn(
        self, player: Player, *, calls: int, cold: bool = True, phase: str = "whole", look: Look | None = None
    ) -> Turn:
        """Calls one after the other, of which nothing is kept. The processors come to rest before, and where memory is
        tight the player gives its own back afterwards. With `look`, the last call is looked at. Before one of them, in
        some turns, the watched player's state is redrawn, whether or not the turn is looked at."""
        time.sleep(_SETTLE_S[self.room.device])
        if self.room.tight:
            self.call(player, phase=phase)  # what it gave back is its own again
        redrawn = self.rng.randrange(calls) if self._redraws(player) else -1
        seen: list[tuple[float, ...]] = []
        with self._watching(player), self._counting(player) as cpu_s:
            for number in range(calls):
                if number == redrawn:
                    self.renew_state()
                k, tick, wall_s = self.call(player, cold=cold, phase=phase)
                seen.append((tick.ns, wall_s - tick.ns / 1e9, tick.after_ns / 1e9, self._between_s, tick.cpu_ns / 1e9))
        if look is not None and seen[-1][0] < look.below_ns:
            look.after(k)
        if redrawn >= 0:
            self.calm_state()
        if self.room.tight:
            player.cell.do(wire.Drop())
        ticks_ns, unseen_s, after_s, between_s, used = zip(*seen, strict=True)
        used_s = sum(used) / calls
        return Turn(
            ticks_ns=ticks_ns,
            unseen_s=unseen_s,
            after_s=after_s,
            between_s=between_s,
            cpu_s=sum(cpu_s) / calls - used_s,
            used_s=used_s,
        )

    @contextmanager
    def _counting(self, player: Player) -> Iterator[list[float]]:
        """The processor time in s of the player's processes in the block."""
        if self.watched is None:
            yield []
            return
        found: list[float] = []
        before_s = player.cell.usage.cpu_s()
        yield found
        found.append(player.cell.usage.cpu_s() - before_s)

    def _redraws(self, player: Player) -> bool:
        """Whether the state is redrawn now: half of the time, while that takes little of it; no look changes that."""
        if self.redraw is None or player.cell is not self.watched:
            return False
        seldom = self.redraw_s > _REDRAW_SHARE * (time.monotonic() - self._began)
        return self.rng.random() < (_SELDOM if seldom else _OFTEN)

    def renew_state(self) -> None:
        """Redraw the watched player's state, where there is any."""
        if self.redraw is not None:
            started = time.monotonic()
            self.redraw.renew()
            self.redraw_s += time.monotonic() - started

    def calm_state(self) -> None:
        """Put masks and indices back that were redrawn."""
        if self.redraw is not None:
            self.redraw.calm()

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
            number, tick, _ = self.call(player, slot=slot, stir=stir)
        if look is not None and tick.ns < look.below_ns:
            look.after(number)
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
        """One burst of everybody, in random order, on contents that are new as a whole."""
        self.renew_contents()
        for player in self.shuffled(self.players):
            self.burst(player, calls=self.calls[player.name], look=(looks or {}).get(player.name))

    def renew_contents(self) -> None:
        """Draw as many pool sets anew as the longest burst of a round has calls: nobody sees one of them twice."""
        self._left.clear()
        if self.fresh is not None:
            self._fresh_sets = min(self.room.pool, max(self.calls.values(), default=self.room.pool))
            self.fresh(self._fresh_sets)

    def anew(self, players: Sequence[Player], calls: dict[str, int]) -> Table:
        """The table with nothing seen yet, for these players."""
        return replace(
            self, players=players, calls=calls, bursts={}, unseen={}, after={}, between={}, cpu={}, used={},
            aside_s=0.0, others_s=0.0,
        )  # fmt: skip

    def all_bursts(self) -> Mapping[str, tuple[tuple[float, ...], ...]]:
        return {name: tuple(bursts) for name, bursts in self.bursts.items()}


def warm(name: str) -> str:
    """Under which name a player's calls with warm caches are kept."""
    return f"{name}_warm"
