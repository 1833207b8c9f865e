"""What a compiled kernel takes of a GPU, and what it moves: known without running it."""

from __future__ import annotations

from dataclasses import dataclass

from .device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Of one pattern at one point; where it is several launches, the most that any of them takes."""

    plan: str  # a digest of how it runs: points of equal plans are the same kernel
    registers: int  # a thread
    local_bytes: int  # a thread: spilled registers, and arrays that are indexed at run time
    shared_bytes: int  # a CTA
    threads: int  # a CTA
    ctas: int
    in_flight_bytes: int  # that a thread loads before it waits
    moved_bytes: int  # over all sweeps: what is read again counts again

    def resident_ctas(self, device: Device) -> int:
        """CTAs that a multiprocessor of the device holds at once; 0: it can't run."""
        return device.resident_ctas(registers=self.registers, threads=self.threads, shared_bytes=self.shared_bytes)
