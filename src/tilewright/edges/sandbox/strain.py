"""How much of its processors a judgement had: what others took meanwhile, and whether enough was left.

Told by the kernel's books, not by how long anything took: a candidate's own load can't pass for others'. What living
processes have used is whose they are, ours being the judge and all that descends from it. The rest was used by
processes that came and went, or in other containers, or stolen by a hypervisor. Of what came and went, whoever waited
for it is told with it; what nobody was seen to use counts as others', unless a candidate's own processes come and go.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .processes import all_spent_s, members

_TICKS = os.sysconf("SC_CLK_TCK")
_ENOUGH = 0.8  # of the processors that whoever is measured would use
_THROTTLED = 0.1  # of the time, in which the group's quota held everybody back
_LEAST_S = 0.25  # the books are kept in hundredths of a second
_POLL_S = 0.5
_STATS = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Processor seconds until a moment: `used_s` by anybody on the processors that we may use, `stolen_s` of these by a
    hypervisor; of each of our processes and of each other, what it used itself and what children did that it has waited
    for; `throttled_s` in which a quota held us back."""

    at_s: float
    used_s: float
    stolen_s: float
    ours: Mapping[int, tuple[float, float]]
    others: Mapping[int, tuple[float, float]]
    throttled_s: float
    processors: int

    @classmethod
    def now(cls) -> Books:
        ours, spent_s = set(_ours()), all_spent_s()
        used = stolen = 0
        mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in mine:  # user nice system idle iowait irq softirq steal ...
                used += sum(map(int, ticks[:8])) - int(ticks[3]) - int(ticks[4])
                stolen += int(ticks[7])
        return cls(
            at_s=time.monotonic(), used_s=used / _TICKS, stolen_s=stolen / _TICKS,
            ours={p: s for p, s in spent_s.items() if p in ours},
            others={p: s for p, s in spent_s.items() if p not in ours}, throttled_s=_throttled_s(),
            processors=len(mine),
        )  # fmt: skip


def _ours() -> list[int]:
    """This process and all below it; with those below the process that `TILEWRIGHT_TOGETHER` names, if this is one of
    them: judges that are meant to share the machine, as in tests."""
    named = os.environ.get("TILEWRIGHT_TOGETHER", "")
    together = members(int(named)) if named.isdigit() else []
    return together if os.getpid() in together else members(os.getpid())


def _throttled_s() -> float:
    for path in _STATS:
        with contextlib.suppress(OSError, ValueError):
            told = dict(line.split() for line in path.read_text().splitlines())
            if "throttled_usec" in told:
                return int(told["throttled_usec"]) / 1e6
            if "throttled_time" in told:
                return int(told["throttled_time"]) / 1e9
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strain:
    """What others had of the processors between two moments (1: all of them), and how long a quota held us back as a
    share of the time. `hidden`: what of `others` was seen in no process."""

    others: float
    hidden: float
    throttled: float
    processors: int

    @classmethod
    def between(cls, before: Books, after: Books) -> Strain:
        span_s = max(after.at_s - before.at_s, 1e-3)
        whole_s = span_s * after.processors
        stolen_s = after.stolen_s - before.stolen_s
        (own_s, own_children_s), (seen_s, seen_children_s) = (
            tuple(sum(max(0.0, s[k] - was.get(p, (0.0, 0.0))[k]) for p, s in now.items()) for k in range(2))
            for was, now in ((before.ours, after.ours), (before.others, after.others))
        )
        # Ours run on our processors alone, a candidate's too (judge.candidate_process.seccomp): others had the rest.
        if after.used_s:  # some sandboxes' kernels count nothing by processor
            seen_s = min(seen_s, max(0.0, after.used_s - before.used_s - stolen_s - own_s))
        # A child counts whole when it is waited for, however long ago it ran: no more than what is missing.
        missing_s = max(0.0, after.used_s - before.used_s - stolen_s - own_s - seen_s)
        ended_s = min(missing_s, seen_children_s)
        hidden_s = missing_s - ended_s - min(missing_s - ended_s, own_children_s)
        return cls(
            others=min((seen_s + ended_s + stolen_s + hidden_s) / whole_s, 1.0), hidden=min(hidden_s / whole_s, 1.0),
            throttled=(after.throttled_s - before.throttled_s) / span_s, processors=after.processors,
        )  # fmt: skip

    def left(self, *, comes_and_goes: bool = False) -> float:
        """How many processors others left us. Where a candidate's processes come and go, what nobody was seen to use
        counts as its own."""
        return self.processors * (1.0 - self.others + (self.hidden if comes_and_goes else 0.0))

    def starves(self, needed: int, *, comes_and_goes: bool = False) -> bool:
        """Whether less was left than whoever is measured needs, by more than noise makes of it."""
        wanted = min(needed, self.processors)
        held = self.throttled > _THROTTLED and not comes_and_goes
        return held or self.left(comes_and_goes=comes_and_goes) < _ENOUGH * wanted

    @property
    def told(self) -> str:
        if self.throttled > _THROTTLED:
            return f"a quota on processors held the judge back for {self.throttled:.0%} of the time"
        return f"other processes had {self.others * self.processors:.1f} of {self.processors} processors meanwhile"


class Gauge:
    """Looks at the books while something is measured, part by part."""

    def __init__(self, needed: int, now: Callable[[], Books] = Books.now) -> None:
        self._needed, self._now = needed, now
        self._last = now()
        self._parts = [Strain(others=0.0, hidden=0.0, throttled=0.0, processors=self._last.processors)]

    def begin(self) -> None:
        """What was before counts for nothing."""
        self._last = self._now()

    def look(self) -> None:
        """At the end of a part of the measurement; parts too short to tell anything are taken with the next."""
        if time.monotonic() - self._last.at_s < _LEAST_S:
            return
        books = self._now()
        self._parts.append(Strain.between(self._last, books))
        self._last = books

    @property
    def worst(self) -> Strain:
        """The part that a quota spoilt, if any is, or in which others had most."""
        return max(self._parts, key=lambda s: (s.throttled > _THROTTLED, s.others))

    @property
    def hidden(self) -> float:
        """How many processors were used, in one of the parts, by what nobody was seen to be."""
        return max(s.hidden * s.processors for s in self._parts)

    def starved(self, *, comes_and_goes: bool = False) -> bool:
        """In any part: what starves a candidate whose processes come and go need not be where others had most."""
        return any(s.starves(self._needed, comes_and_goes=comes_and_goes) for s in self._parts)


def calm_within(longest_s: float, needed: int, *, comes_and_goes: bool = False) -> bool:
    """Wait until others leave enough for half a second; whether they did in time."""
    stop = time.monotonic() + longest_s
    before = Books.now()
    while time.monotonic() + _POLL_S <= stop:  # a shorter look would take a pause of theirs for calm
        time.sleep(_POLL_S)
        after = Books.now()
        if not Strain.between(before, after).starves(needed, comes_and_goes=comes_and_goes):
            return True
        before = after
    return False
