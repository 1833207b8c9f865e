"""What a compiled kernel takes of a GPU, and what it moves: known without running it."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def resident_ctas(self) -> int:
        """CTAs that a multiprocessor holds at once; 0: it can't run."""
        return resident_ctas(registers=self.registers, threads=self.threads, shared_bytes=self.shared_bytes)


# A multiprocessor of compute capability 9.0 (CUDA C++ Programming Guide, technical specifications).
_REGISTERS, _THREADS, _CTAS, _SHARED_BYTES = 65536, 2048, 32, 228 << 10
_RESERVED_SHARED_BYTES = 1 << 10  # of each CTA, by the system
_REGISTER_UNIT = 8  # a thread's registers are given out in multiples of this


def resident_ctas(*, registers: int, threads: int, shared_bytes: int) -> int:
    """CTAs of such a kernel that a multiprocessor holds at once; 0: it can't run."""
    given = -(-registers // _REGISTER_UNIT) * _REGISTER_UNIT
    return min(
        _CTAS,
        _THREADS // threads,
        _REGISTERS // max(given * threads, 1),
        _SHARED_BYTES // (shared_bytes + _RESERVED_SHARED_BYTES),
    )
