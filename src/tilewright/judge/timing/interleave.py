"""Interleaving: bursts of several implementations in random order, each call on contents that no call saw before as a
whole."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..client import Cell
from ..memory.case_memory import CaseMemory
from ..wire import messages as wire
from .calls import Caller
from .calls import TimedSubject as TimedSubject

_BURST_S = 0.03
MOST_CALLS = 40
# After a parallel region the OpenMP threads of a process spin for some milliseconds before they sleep, and would take
# the processors from the next process's burst: on 2 idle cores (AMD EPYC, 2026-11-20), three processes in turn, the
# slowest tenth of the calls took 5.4 ms without this pause and 1.7 ms with it, the median 1.2-1.4 ms either way.
SETTLE_S = {"cpu": 0.02, "cuda": 0.0}
_REDRAW_SHARE, _OFTEN, _SELDOM = 0.25, 0.5, 0.1  # of the time, state is redrawn often; else seldom


@dataclass(frozen=True, slots=True)
class VerifiedLook:
    """What the judge does after a timed call that it verifies, with the pool set that the call was made on, where it
    took less than `below_ns`. Before such a call it does nothing that it does not do before any other."""

    after: Callable[[int], None]
    below_ns: float = math.inf


@dataclass(slots=True)
class TurnRedraw:
    """How the watched subject's parameters and buffers come to be other ones in the middle of a turn (`change`), and
    how masks and indices among them are put back after it (`calm`). When that is done hangs on nothing else. `spent_s`:
    how long the changes took."""

    change: Callable[[], None] = lambda: None
    calm: Callable[[], None] = lambda: None
    spent_s: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def due(self, rng: random.Random) -> bool:
        """Whether the state is redrawn now: half of the time, while that takes little of it; no look changes that."""
        seldom = self.spent_s > _REDRAW_SHARE * (time.monotonic() - self._began)
        return rng.random() < (_SELDOM if seldom else _OFTEN)

    def renew(self) -> None:
        started = time.monotonic()
        self.change()
        self.spent_s += time.monotonic() - started


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
class BurstSchedule:
    """Who plays, where, and what is known by now. `bursts` holds ticks in ns; `unseen` what the judge's clock saw of
    each of these calls beyond its tick, `after` how long the device worked on after it, `between` how long its cell
    took to get ready for it, `cpu` and `used` its processor time outside and inside of a burst's ticks, a call, all in
    s. Bursts with warm caches stand under `warm(name)`."""

    timed: Caller
    subjects: Sequence[TimedSubject]
    fresh: Callable[[int], None] | None = None  # draws so many pool sets anew
    redraw: TurnRedraw = field(default_factory=TurnRedraw)
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
    _left: dict[str, list[int]] = field(default_factory=dict)  # pool sets that a subject has not seen in this round
    _fresh_sets: int = 0  # pool sets that were drawn for this round; 0: all

    @property
    def memory(self) -> CaseMemory:
        return self.timed.memory

    @property
    def rng(self) -> random.Random:
        return self.timed.rng

    def call(
        self, subject: TimedSubject, *, cold: bool = True, phase: str = "whole", slot: int = -1, stir: bool = True
    ) -> tuple[int, wire.Tick, float]:
        """One timed call on a pool set that this subject has not seen in this round, in a random slot, or on the set
        and in the slot of this number: the set, the tick, and the wall time in s that the judge saw."""
        number = slot if slot >= 0 else self._next_set(subject)
        slot = slot if slot >= 0 else self.rng.randrange(self.memory.slots)
        return number, *self.timed.call(subject, number, slot, cold=cold, phase=phase, stir=stir)

    def _next_set(self, subject: TimedSubject) -> int:
        left = self._left.setdefault(subject.name, [])
        if not left:
            count = self._fresh_sets or self.memory.pool
            left += self.rng.sample(range(count), count)
        return left.pop()

    @contextmanager
    def watching(self, subject: TimedSubject) -> Iterator[None]:
        """What the watched cell does in the block, which is another's turn."""
        if self.watched is None or subject.cell is self.watched:
            yield
            return
        before_s, started = self.watched.usage.cpu_s(), time.monotonic()
        yield
        self.others_s += time.monotonic() - started
        self.aside_s += self.watched.usage.cpu_s() - before_s

    def burst(self, subject: TimedSubject, *, calls: int, cold: bool = True, look: VerifiedLook | None = None) -> None:
        """A turn, kept under the subject's name. With `look`, a random call is the last and looked at."""
        calls = self.rng.randint(1, calls) if look is not None else calls
        turn = self.turn(subject, calls=calls, cold=cold, look=look)
        name = subject.name if cold else warm(subject.name)
        self.bursts.setdefault(name, []).append(turn.ticks_ns)
        self.unseen.setdefault(name, []).append(turn.unseen_s)
        self.after.setdefault(name, []).append(turn.after_s)
        self.between.setdefault(name, []).append(turn.between_s)
        self.cpu.setdefault(name, []).append(turn.cpu_s)
        self.used.setdefault(name, []).append(turn.used_s)

    def turn(
        self, subject: TimedSubject, *, calls: int, cold: bool = True, phase: str = "whole",
        look: VerifiedLook | None = None,
    ) -> Turn:  # fmt: skip
        """Calls one after the other, of which nothing is kept. The processors come to rest before, and where memory is
        tight the subject gives its own back afterwards. With `look`, the last call is looked at. Before one of them, in
        some turns, the watched subject's state is redrawn, whether or not the turn is looked at."""
        time.sleep(SETTLE_S[self.memory.device])
        if self.memory.tight:
            self.call(subject, phase=phase)  # what it gave back is its own again
        redrawn = self.rng.randrange(calls) if subject.cell is self.watched and self.redraw.due(self.rng) else -1
        seen: list[tuple[float, ...]] = []
        with self.watching(subject):
            before_s = subject.cell.usage.cpu_s() if self.watched is not None else 0.0
            for number in range(calls):
                if number == redrawn:
                    self.redraw.renew()
                k, tick, wall_s = self.call(subject, cold=cold, phase=phase)
                between_s = self.timed.between_s
                seen.append((tick.ns, wall_s - tick.ns / 1e9, tick.after_ns / 1e9, between_s, tick.cpu_ns / 1e9))
            cpu_s = subject.cell.usage.cpu_s() - before_s if self.watched is not None else 0.0
        if look is not None and seen[-1][0] < look.below_ns:
            look.after(k)
        if redrawn >= 0:
            self.redraw.calm()
        if self.memory.tight:
            subject.cell.do(wire.Drop())
        ticks_ns, unseen_s, after_s, between, used = zip(*seen, strict=True)
        used_s = sum(used) / calls
        return Turn(
            ticks_ns=ticks_ns, unseen_s=unseen_s, after_s=after_s, between_s=between, cpu_s=cpu_s / calls - used_s,
            used_s=used_s,
        )  # fmt: skip

    def shuffled(self, subjects: Sequence[TimedSubject]) -> list[TimedSubject]:
        """The subjects of a round in random order. For them the delay is settled anew, by what launches took before."""
        self.timed.delay.settle(self.watched)
        return self.rng.sample(list(subjects), len(subjects))

    def warm_up(self, subjects: Sequence[TimedSubject] = ()) -> None:
        """Five calls each (of all, if none are named), of which nothing is kept: what is compiled or allocated on first
        use is over, and how many calls make a burst is known."""
        for subject in subjects or self.subjects:
            seen = [self.call(subject) for _ in range(5)][2:]
            per_call_s = sorted(max(wall_s, tick.ns / 1e9) for _, tick, wall_s in seen)[1]
            self.calls[subject.name] = max(1, min(self.most_calls, round(_BURST_S / per_call_s)))
            self.bursts.setdefault(subject.name, [])

    def round(self, looks: Mapping[str, VerifiedLook] | None = None) -> None:
        """One burst of everybody, in random order, on contents that are new as a whole."""
        self.renew_contents()
        for subject in self.shuffled(self.subjects):
            self.burst(subject, calls=self.calls[subject.name], look=(looks or {}).get(subject.name))

    def renew_contents(self) -> None:
        """Draw as many pool sets anew as the longest burst of a round has calls: nobody sees one of them twice."""
        self._left.clear()
        if self.fresh is not None:
            self._fresh_sets = min(self.memory.pool, max(self.calls.values(), default=self.memory.pool))
            self.fresh(self._fresh_sets)

    def anew(self, subjects: Sequence[TimedSubject], calls: dict[str, int]) -> BurstSchedule:
        """The table with nothing seen yet, for these subjects."""
        return replace(
            self, subjects=subjects, calls=calls, bursts={}, unseen={}, after={}, between={}, cpu={}, used={},
            aside_s=0.0, others_s=0.0,
        )  # fmt: skip


def warm(name: str) -> str:
    """Under which name a subject's calls with warm caches are kept."""
    return f"{name}_warm"
