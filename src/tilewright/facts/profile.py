"""What a profile says of a call, in one form whatever took it: what limits each kernel, and the evidence for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What is asked of a profile. "auto": first what limits a kernel, then more of just that.
Question = Literal["auto", "memory", "compute", "latency"]
# Where the evidence comes from: hardware counters; what the driver tells of each launch (CUPTI, by torch's profiler);
# the machine code, not run; on the CPU, torch's operators.
Source = Literal["ncu", "CUPTI", "code", "operators"]
Limit = Literal[
    "memory", "cache", "shared memory", "tensor cores", "arithmetic", "latency", "parallelism", "spills", "launches",
    "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number with its unit: "byte", "byte/s", "ns", "%", or "" for a plain count."""

    name: str
    value: float
    unit: str = ""

    @property
    def text(self) -> str:
        """The value with its unit, in three digits: "91.2%", "1.23 GB"."""
        if self.unit == "%":
            return f"{self.value:.3g}%"
        scales = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
        scale, prefix = next(((s, p) for s, p in scales if self.unit and abs(self.value) >= s), (1.0, ""))
        unit = self.unit.replace("byte", "B")
        return f"{self.value / scale:.3g} {prefix}{unit}" if unit else f"{self.value:.6g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotSpot:
    """An instruction (or the line it comes from) at which warps were found, `share` of all times that they were looked
    for; `why`: what they waited for there most often."""

    where: str
    share: float
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """One kernel of a call, all of its launches alike together. `stalls`: why warps waited, as shares of the time that
    they did, the largest first."""

    name: str
    origin: str  # whose code it is: "own", "torch", "cuBLAS"
    source: Source
    times: int
    ns: float  # of all launches; 0: not run
    limit: Limit
    evidence: tuple[Measure, ...]
    stalls: tuple[Measure, ...] = ()
    hot: tuple[HotSpot, ...] = ()

    @property
    def title(self) -> str:
        """Its name without type and arguments, cut where its template is long."""
        name = self.name.removeprefix("void ").split("(", 1)[0] or self.name
        return name if len(name) <= 60 else name[:57] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`limit`: one line, of the call; `changes`: what is most likely to pay, the likeliest first, at most three;
    `notes`: what could not be had, and why."""

    limit: str
    kernels: tuple[KernelProfile, ...] = ()
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self, most: int = 2) -> tuple[str, ...]:
        """The whole in words, of at most so many kernels: the limit, the evidence, what is likeliest to pay."""
        told = [self.limit]
        for kernel in self.kernels[:most]:
            told.append(
                f"{kernel.title} ({kernel.source}): " + ", ".join(f"{m.name} {m.text}" for m in kernel.evidence)
            )
            if kernel.stalls:
                told.append("its warps wait: " + ", ".join(f"{m.name} {m.text}" for m in kernel.stalls))
            told += [
                f"{spot.share:.0%} of its samples at: {spot.where}" + (f" ({spot.why})" if spot.why else "")
                for spot in kernel.hot
            ]
        told += [f"likely to pay: {change}" for change in self.changes]
        return (*told, *(f"not seen: {note}" for note in self.notes))
