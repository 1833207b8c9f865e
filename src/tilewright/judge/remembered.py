"""torch.compile's modes beside one another: the fastest is the baseline of a verdict; those that take minutes to
compile are timed once for a problem, device and versions, and kept in a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..facts.machine import Machine
from ..facts.outcome import Interval, Samples, Timed
from ..facts.problem import Problem

COMPILE, DEFAULT = "compile", "default"
MINUTES = ("max-autotune", "max-autotune-no-cudagraphs")  # modes that take as long to compile
_FILE, _VERSION = "baselines.json", 1


def named(mode: str) -> str:
    """The name of a mode's times while all are measured."""
    return COMPILE if mode == DEFAULT else f"{COMPILE}:{mode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedBaseline:
    """A mode's time of a call, and how many times as fast as eager it was in the same rounds, on that `day`."""

    mode: str
    time_ns: Interval
    speedup: Interval
    day: str


class BaselineMemory:
    """Of one problem on one machine, in `folder`; None keeps nothing. A file that can't be read holds nothing."""

    def __init__(self, problem: Problem, machine: Machine, *, folder: Path | None) -> None:
        self._path = folder / _FILE if folder is not None else None
        like = "\0".join((problem.digest, machine.device, machine.torch, str(_VERSION)))
        self._key = hashlib.sha256(like.encode()).hexdigest()[:16]

    def known(self, modes: Sequence[str]) -> tuple[RememberedBaseline, ...]:
        """What is known of these modes, of those that take minutes."""
        mine = self._read().get(self._key, {})
        return tuple(found for m in modes if m in MINUTES and (found := _baseline(m, mine.get(m))) is not None)

    def keep(self, timed: Timed, modes: Sequence[str]) -> None:
        """Keep what these modes, of those that take minutes, took in this judgement's rounds."""
        found = {m: _measured(timed, m) for m in modes if m in MINUTES and timed.ratio(named(m)) is not None}
        if self._path is None or not found:
            return
        every = self._read()
        every[self._key] = {**every.get(self._key, {}), **found}
        partial = self._path.with_name(f"{_FILE}.{os.getpid()}")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(every, indent=1))
        partial.replace(self._path)

    def _read(self) -> dict[str, Any]:
        try:
            tree = json.loads(self._path.read_text()) if self._path is not None else {}
        except (OSError, ValueError):
            return {}
        return tree if isinstance(tree, dict) and all(isinstance(v, dict) for v in tree.values()) else {}


class ComparedModes:
    """The modes of torch.compile that a judge compares candidates with."""

    def __init__(self, problem: Problem, machine: Machine, modes: Sequence[str], *, folder: Path | None) -> None:
        self._modes = tuple(modes)
        self._memory = BaselineMemory(problem, machine, folder=folder)
        self._remembered = self._memory.known(self._modes)

    def due(self, say: Callable[[str], None]) -> tuple[str, ...]:
        """Those that are to be timed: all but what is remembered, which is said."""
        for one in self._remembered:
            say(f"torch.compile in mode {one.mode} was timed on {one.day}, {one.speedup.mid:.2f}x as fast as eager")
        known = {one.mode for one in self._remembered}
        return tuple(mode for mode in self._modes if mode not in known)

    def against_fastest(self, timed: Timed) -> Timed:
        """The verdict against the fastest of them; what took minutes to compile is kept."""
        self._memory.keep(timed, self._modes)
        return against_fastest(timed, self._remembered)


def against_fastest(timed: Timed, remembered: Sequence[RememberedBaseline]) -> Timed:
    """The verdict with what is remembered beside what was timed, and with the fastest of all modes as "compile"."""
    for one in remembered:
        timed = _with(timed, one)
    times = dict(timed.times_ns)
    speeds = {n: r.mid for n, r in timed.ratios if n.partition(":")[0] == COMPILE and n in times and not _is_warm(n)}
    best = min(speeds, key=lambda name: speeds[name], default=COMPILE)
    if best == COMPILE:
        return timed
    renamed = {best: COMPILE, COMPILE: f"{COMPILE}:{DEFAULT}"}
    mode = best.partition(":")[2]
    return replace(
        _renamed(timed, renamed), compile_mode=mode,
        compile_remembered=next((one.day for one in remembered if one.mode == mode), ""),
    )  # fmt: skip


def _with(timed: Timed, one: RememberedBaseline) -> Timed:
    eager = timed.ratio("eager")
    if eager is None:
        return timed
    ratio = Interval(
        low=eager.low / one.speedup.high, mid=eager.mid / one.speedup.mid, high=eager.high / one.speedup.low
    )
    name = named(one.mode)
    return replace(
        timed, times_ns=(*timed.times_ns, (name, one.time_ns)), ratios=(*timed.ratios, (name, ratio))
    )  # fmt: skip


def _is_warm(name: str) -> bool:
    return name.endswith("_warm")


def _renamed(timed: Timed, names: Mapping[str, str]) -> Timed:
    def name(old: str) -> str:
        stem = old.removesuffix("_warm")
        return names.get(stem, stem) + old[len(stem) :]

    return replace(
        timed,
        times_ns=tuple((name(n), t) for n, t in timed.times_ns),
        ratios=tuple((name(n), r) for n, r in timed.ratios),
        samples=tuple(Samples(name=name(s.name), bursts_ns=s.bursts_ns) for s in timed.samples),
        peak_bytes=tuple((name(n), size) for n, size in timed.peak_bytes),
    )


def _measured(timed: Timed, mode: str) -> dict[str, object]:
    """As the file has it; the speed beside eager is what is paired of both."""
    ratio, eager, time_ns = timed.ratio(named(mode)), timed.ratio("eager"), timed.time(named(mode))
    assert ratio is not None and eager is not None and time_ns is not None
    speedup = (eager.low / ratio.high, eager.mid / ratio.mid, eager.high / ratio.low)
    day = datetime.now(UTC).date().isoformat()
    return {"time_ns": [time_ns.low, time_ns.mid, time_ns.high], "speedup": speedup, "day": day}


def _baseline(mode: str, tree: Any) -> RememberedBaseline | None:
    try:
        times, speedup = ([float(x) for x in tree[name]] for name in ("time_ns", "speedup"))
        found = [Interval(low=low, mid=mid, high=high) for low, mid, high in (times, speedup)]
        return RememberedBaseline(mode=mode, time_ns=found[0], speedup=found[1], day=str(tree["day"]))
    except (KeyError, TypeError, ValueError):
        return None
