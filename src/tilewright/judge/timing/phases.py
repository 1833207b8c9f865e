"""The two halves of a training step, timed apart: forward with what it keeps for the backward, and backward alone.

The verdict's ratio is the whole step's, which the judge's own clock is held against. A candidate may move work from one
half into the other; the halves say where its gain lies, no more.
"""

from __future__ import annotations

from ...facts.outcome import Phase, Samples
from . import statistics
from .interleave import BurstSchedule

_PHASES = ("forward", "backward")


def measure_phases(schedule: BurstSchedule, *, ours: str, names: tuple[str, ...], rounds: int) -> tuple[Phase, ...]:
    """Each half of the implementations named, in turn and in random order, as many bursts each as there are rounds."""
    subjects = [p for p in schedule.subjects if p.name in names]
    found: list[Phase] = []
    for phase in _PHASES:
        bursts: dict[str, list[tuple[float, ...]]] = {p.name: [] for p in subjects}
        for _ in range(rounds):
            schedule.renew_contents()
            for subject in schedule.shuffled(subjects):
                ticks_ns = schedule.turn(subject, calls=schedule.calls[subject.name], phase=phase).ticks_ns
                bursts[subject.name].append(ticks_ns)
        times = tuple((n, statistics.time_interval(b)) for n, b in bursts.items())
        ratios = tuple((n, statistics.ratio_interval(b, bursts[ours])) for n, b in bursts.items() if n != ours)
        samples = tuple(Samples(name=n, bursts_ns=tuple(b)) for n, b in bursts.items())
        found.append(Phase(name=phase, times_ns=times, ratios=ratios, samples=samples))
    return tuple(found)
