"""Timed calls, one by one or in a row: what changes before each, what is shown to the cell, and its answer.

The judge asks for every call by itself: which slot is next, what changes in it, and whether the result will be looked
at, is not decided, and so can't be known in the cell, before the call before it is over. Each call is seen by two
clocks, the cell's around the call (its tick) and the judge's around the whole request.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

from ..client import Cell, CellFault
from ..memory.case_memory import CaseMemory
from ..memory.evictor import Evictor
from ..memory.images import Image
from ..memory.stirring import Stirring
from ..wire import messages as wire

CALL_LIMIT_S = 180.0

T = TypeVar("T")
RowLook = Callable[[int, int], None]  # looks at what the call on a slot returned, by its number in the row (-1: last)


@dataclass(frozen=True, slots=True)
class TimedSubject:
    """One implementation to be timed: its name in the result, the cell that runs it, how many calls in a row count
    as one, and the names of what its calls move, which is put back before each: buffers, and plain attributes."""

    name: str
    cell: Cell
    repeat: int = 1
    moved: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()

    def as_long(self, times: float) -> TimedSubject:
        """The same, with so many calls as one, as a second call moves on from what the first has left: statistics of
        batches bear that, a cache would be full."""
        bears = all(name.rpartition(".")[2] in _STATISTICS for name in self.moved)
        return replace(self, repeat=max(1, math.ceil(times)) if bears else 1)


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class _Shown:
    """What was shown last: pool sets, in slots from the first on; on the CPU in an image."""

    sets: tuple[int, ...]
    first_slot: int
    image: Image | None


class Caller:
    """The calls in one room. `evictor` of None: caches stay as they are. `stirring` of pool sets, before each call, and
    `row_stirring` of slots, between calls in a row; None: contents stay as they are. `between_s`: how long the last
    call's cell took to get ready for it."""

    def __init__(
        self, memory: CaseMemory, rng: random.Random, *, evictor: Evictor | None = None,
        stirring: Stirring | None = None, row_stirring: Stirring | None = None,
    ) -> None:  # fmt: skip
        self.memory, self.rng, self.evictor = memory, rng, evictor
        self.stirring, self.row_stirring = stirring, row_stirring
        self.delay = Delay()
        self.between_s = 0.0
        self._dealt: list[Cell] = []
        self._shown: _Shown | None = None

    def call(
        self, subject: TimedSubject, number: int, slot: int, *, cold: bool, phase: str, stir: bool
    ) -> tuple[wire.Tick, float]:
        """One timed call on the pool set of this number: the tick, and the wall time in s that the judge saw. Contents
        are shown when all else is ready, at the last moment before the clock."""
        if stir and self.stirring is not None:
            self.memory.sets.swap(self.stirring.swaps(number))
        request = wire.TimedCall(
            slot=slot, swaps=(), warm=not cold, phase=phase, repeat=subject.repeat, delay_ns=self.delay.ns
        )
        self._deal(subject)
        tick, wall_s = self._ask_showing(subject, request, number, cold=cold)
        self._take(subject.cell, tick)
        return tick, wall_s

    def _ask_showing(
        self, subject: TimedSubject, request: wire.TimedCall, number: int, *, cold: bool
    ) -> tuple[wire.Tick, float]:
        """The answer to a timed call on a pool set, and how long that took by the judge's clock, in s. On the CPU the
        set's image goes with the request. On a GPU the judge writes to the slot, and the cell evicts caches then."""
        image = self._show((number,), request.slot)
        self._clear(subject, cold=cold)
        if image is not None:
            request = replace(request, lay_offset=image.offset, lay_bytes=image.size_bytes)
        elif self.memory.device == "cuda":
            request = self.evictor.before(request) if cold and self.evictor is not None else request
            self.memory.sets.place(number, request.slot)
        return self._timed(subject.cell, request, wire.Tick, descriptor=image.descriptor if image else None)

    def _show(self, sets: tuple[int, ...], first_slot: int) -> Image | None:
        """The image of these pool sets, if they are shown in one."""
        if self._shown is not None and self._shown.image is not None:
            self._shown.image.close()
        self._shown = _Shown(sets, first_slot, self.memory.sets.image(sets, first_slot))
        return self._shown.image

    def changed_input(self) -> int:
        """The first input, of what was shown last, that is not what the judge has put there; -1 where none is."""
        if self._shown is None:
            return -1
        places = enumerate(self._shown.sets, self._shown.first_slot)
        return max(self.memory.sets.changed_input(k, slot, self._shown.image) for slot, k in places)

    def row(
        self, subject: TimedSubject, *, calls: int, keep: bool, look: RowLook | None = None
    ) -> tuple[tuple[float, ...], float]:
        """Calls in a row with warm caches, of which the judge hears when all are over: their ticks in ns, and the wall
        time in s of them all. With `look`, one of them is looked at (the last, unless all are kept); which one is
        decided afterwards."""
        requests = tuple(self._in_a_row(subject) for _ in range(calls))
        self._deal(subject)
        self._show_all(subject.cell)
        self._clear(subject, cold=False)
        row = wire.TimedCalls(calls=requests, keep=keep)
        ticks, wall_s = self._timed(subject.cell, row, wire.Ticks)
        if len(ticks.ticks) != calls:
            _refuse(subject.cell, f"its clock tells of {len(ticks.ticks)} of {calls} calls")
        for tick in ticks.ticks:
            self._take(subject.cell, tick)
        looked = self.rng.randrange(calls) if keep else calls - 1
        for number, request in enumerate(requests):
            self.memory.sets.swap(request.swaps)
            if look is not None and number == looked:
                look(request.slot, number if keep else -1)
        return tuple(tick.ns for tick in ticks.ticks), wall_s

    def _in_a_row(self, subject: TimedSubject) -> wire.TimedCall:
        slot = self.rng.randrange(self.memory.slots)
        swaps = self.row_stirring.swaps(slot) if self.row_stirring is not None else ()
        return wire.TimedCall(slot=slot, swaps=swaps, warm=True, repeat=subject.repeat, delay_ns=self.delay.ns)

    def _show_all(self, cell: Cell) -> None:
        """Show in every slot the pool set of its number: rows change places between them in the row."""
        sets = tuple(range(self.memory.slots))
        image = self._show(sets, 0)
        if image is not None:
            request = wire.Lay(offset=image.offset, size_bytes=image.size_bytes)
            cell.ask(request, wire.Done, limit_s=CALL_LIMIT_S, descriptor=image.descriptor)
        elif self.memory.device == "cuda":
            for number in sets:
                self.memory.sets.place(number, number)

    def _clear(self, subject: TimedSubject, *, cold: bool) -> None:
        """The same before every timed call: the last result is let go, state that calls move is put back, and, before
        `cold` ones, caches are evicted (on a GPU with the call itself)."""
        given = (
            tuple(a for a in self.memory.state.attributes if a.name in subject.attributes) if subject.attributes else ()
        )
        started = time.perf_counter()
        if cold and self.evictor is not None and self.memory.device == "cpu":
            self.evictor.clear(subject.cell, attributes=given, limit_s=CALL_LIMIT_S)
        else:
            subject.cell.do(wire.Clear(flush_bytes=0, attributes=given), limit_s=CALL_LIMIT_S)
        self.between_s = time.perf_counter() - started

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
            _refuse(
                cell,
                f"its clock says that a call took {tick.ns} ns, {tick.launched_ns} to launch, {tick.after_ns} after it",
            )
        self.delay.note(cell, tick.launched_ns)

    def _deal(self, subject: TimedSubject) -> None:
        if subject.cell not in self._dealt:
            slots = tuple(self.memory.sets.slot(i) for i in range(self.memory.slots))
            state = self.memory.state.buffers(subject.moved) if subject.moved else ()
            subject.cell.do(wire.Deal(args=self.memory.described.args, slots=slots, moved=subject.moved, state=state))
            if self.evictor is not None:
                self.evictor.admit(subject.cell)
            self._dealt.append(subject.cell)


def _refuse(cell: Cell, why: str) -> NoReturn:
    cell.kill()
    raise CellFault("clock_disagrees", why, source=cell.plan.name)


# ---- How long a GPU is kept busy before the clock of a timed call starts, so that its launches are hidden

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
