"""A Winner: the point that won where a pattern was tuned, and the evidence: what was measured beside it, on what."""

from __future__ import annotations

from dataclasses import dataclass

from .machine import Machine
from .outcome import Interval, PointTime
from .space import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What a measured time rests on beside the device. Under another one a winner is worth a trial, not belief."""

    driver: str
    torch: str
    dsl: str  # the CuTe DSL, or the C++ compiler
    tilewright: str  # its version, and for winners a digest of what makes the kernels: "0.1.0 5c11c25f46e4"


def toolchain(machine: Machine, *, tilewright: str) -> Toolchain:
    return Toolchain(driver=machine.driver, torch=machine.torch, dsl=machine.dsl, tilewright=tilewright)


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """`tried` holds every point that was measured in turn with this one, and this one; times are ns per call of the
    whole module around the pattern, or of the pattern alone where that was measured (benchmarks/product_winners.py)."""

    target: str
    device: str
    toolchain: Toolchain
    shape_class: str  # Pattern.shape_class
    title: str
    point: Point
    tried: tuple[PointTime, ...]
    floor_share: float  # the module's floor on this machine / its time at the point
    found_at: str  # UTC, ISO 8601: "2026-11-21T20:15:00+00:00"

    @property
    def time_ns(self) -> Interval:
        """Of the winning point. Raises ValueError where the evidence holds no time of it."""
        for measured in self.tried:
            if measured.point == self.point and measured.time_ns is not None:
                return measured.time_ns
        raise ValueError(f"{self.shape_class}: no time was measured at the point that is said to have won")
