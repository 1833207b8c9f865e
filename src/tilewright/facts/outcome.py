"""What comes of a candidate: Built, Checked, Timed, or a Failure. Each holds the one before it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

FailureStage = Literal["build", "check", "timing", "tune", "propose", "cell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The candidate's fault. `reason` is a short slug (`crashed`, `hung`, `wrong_values`, `wrong_shape`, `wrong_dtype`,
    `input_modified`, `out_of_memory`, `implausible`, `does_not_compile`, `no_entry`, ...); `excerpt` is at most 4 KB of
    what the candidate printed or raised."""

    stage: FailureStage
    reason: str
    summary: str
    excerpt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median (or estimate) with a 95% interval, in the unit of the field that holds it."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    candidate_id: str
    build_s: float
    protections: tuple[str, ...]  # sandbox protections that were active in the cell
    missing_protections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """Error of one output of one case against float64 truth: relative in the norm, and worst element (units of the
    output's own scale), each beside what the precision contract allows."""

    case: int
    family: str  # input family, e.g. "own", "normal"
    output: int
    norm: float
    worst: float
    allowed_norm: float
    allowed_worst: float

    @property
    def share(self) -> float:
        """How much of the allowance is used; 1 is the limit. Exact outputs allow nothing and use nothing."""
        pairs = ((self.norm, self.allowed_norm), (self.worst, self.allowed_worst))
        return max(got / allowed if allowed else (inf if got else 0.0) for got, allowed in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    built: Built
    errors: tuple[OutputError, ...]  # every comparison made
    own_kernel_share: float | None = None  # share of GPU time in kernels of the candidate's own, where measured
    notes: tuple[str, ...] = ()  # what a reader must know of how this was checked ("no float64 truth ...")
    fallbacks: tuple[tuple[str, int], ...] = ()  # the candidate's own count of calls that left its fast path, by reason

    @property
    def worst_error(self) -> OutputError | None:
        """The comparison that came nearest to its allowance."""
        return max(self.errors, key=lambda e: e.share, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """All samples of one implementation, ns per call, one tuple per burst, in the order of the rounds."""

    name: str  # "ours", "eager", "compile", "eager_again" (A/A)
    bursts_ns: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    checked: Checked
    times_ns: tuple[tuple[str, Interval], ...]  # median and 95% interval by implementation name
    ratios: tuple[
        tuple[str, Interval], ...
    ]  # baseline time / our time, paired: "eager", "compile", "aa" (eager / eager)
    samples: tuple[Samples, ...]
    floor_ns: float
    bytes_moved: int
    flops: int

    def time(self, name: str) -> Interval | None:
        return dict(self.times_ns).get(name)

    def ratio(self, name: str) -> Interval | None:
        return dict(self.ratios).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTime:
    """One tuned point: ns per call of the whole module at it, or why it could not run."""

    point: tuple[tuple[str, int | str | bool], ...]
    time_ns: Interval | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Points measured interleaved in one cell, in the order given."""

    points: tuple[PointTime, ...]
