"""An analytic model of a pattern's time at a point: it orders the points of a Space, and cuts a large one to the few
that are worth measuring. Pure; it decides what is measured, never what wins.

    bytes moved / bandwidth that so many bytes in flight can draw x whole waves / waves

The bytes in flight that a memory system of some latency needs follow from Little's law; a last wave that is not full
takes as long as a full one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ...facts.demand import Demand
from ...facts.device import Device
from ...facts.space import Point, Space
from ...ir.program import Program

MOST_POINTS = 8  # measured of one Space
# What lies within this factor is equal to the model, and stays in the order that the skeleton gave. It is wide: the
# model was not yet held against measured sweeps on a GPU.
_STEP = 1.25

_LATENCY_NS = 700.0  # of a load from memory under load: an order of magnitude, not a measurement of this machine
# To start OpenMP's other threads and wait for them: a chain over 12288 and 16384 fp32 elements took 13.5 and 15.3 us on
# one thread, 10.7 and 11.4 on two (AMD EPYC, 2 threads, 2026-11-21, the least of 40 calls each in turn).
_START_NS = 4e3


def cuda_ns(demand: Demand, device: Device) -> float:
    """ns of a pattern's kernels, without what a launch costs; infinite where they can't run."""
    resident = demand.resident_ctas(device)
    if resident == 0:
        return math.inf
    waves = demand.ctas / (resident * device.processors)
    here = min(resident, -(-demand.ctas // device.processors))  # CTAs that a busy multiprocessor holds
    in_flight = here * demand.threads * demand.in_flight_bytes * device.processors
    drawn = min(1.0, in_flight / (device.copy_bytes_per_ns * _LATENCY_NS))
    uneven = math.ceil(waves) / waves if waves > 1 else 1.0
    return demand.moved_bytes / (device.copy_bytes_per_ns * max(drawn, 1e-3)) * uneven


def cpu_ns(program: Program, point: Point, device: Device) -> float:
    """ns of a pattern on the CPU, where a program of at most `grain` elements runs on one thread: that draws its share
    of the bandwidth, and starts no others. Other knobs are equal to it."""
    alone = math.prod(program.domain) <= int(dict(point)["grain"])
    all_threads_ns = program.traffic_bytes / device.copy_bytes_per_ns
    return all_threads_ns * device.processors if alone else all_threads_ns + _START_NS


def likeliest(space: Space, times_ns: Mapping[Point, float], *, most: int = MOST_POINTS) -> Space:
    """The space with the points that can run at all (all, if none can) in the order of their predicted times, at most
    `most` of them; predictions that hardly differ leave the skeleton's order as it is. `times_ns` holds all points."""
    able = [p for p in space.points if math.isfinite(times_ns[p])] or list(space.points)
    best = min(times_ns[p] for p in able)

    def step(point: Point) -> float:
        time_ns = times_ns[point]
        return math.floor(math.log(time_ns / best, _STEP)) if math.isfinite(time_ns) and best > 0 else 0.0

    return replace(space, points=tuple(sorted(able, key=step)[:most]))
