"""What comes of a candidate: Built, Checked, Timed, or a Failure. Each holds the one before it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Literal

from .machine import DeviceState
from .profile import Diagnosis

# Two processes that run the same code may differ by this much for good (pages, addresses): less is no gain.
LEAST_GAIN = 0.01

FailureStage = Literal["verify", "build", "check", "timing", "tune", "propose", "cell"]


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
    """A median (or estimate) with a 99% interval, in the unit of the field that holds it."""

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
    notes: tuple[str, ...] = ()  # what a reader must know of how this was checked ("no float64 truth ...")
    fallbacks: tuple[tuple[str, int], ...] = ()  # the candidate's own count of calls that left its fast path, by reason
    time_shares: tuple[tuple[str, float], ...] = ()  # of a call's time, by whose code it is: "own", "torch", "cuBLAS"

    @property
    def own_share(self) -> float | None:
        """The share of a call's time in kernels of the candidate's own; None where it was not measured."""
        return dict(self.time_shares).get("own", 0.0) if self.time_shares else None

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
class Station:
    """What a part of a judgement took, and how that divides by who was busy."""

    name: str
    seconds: float
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One half of a training step ("forward", "backward"), timed apart: as in Timed."""

    name: str
    times_ns: tuple[tuple[str, Interval], ...]
    ratios: tuple[tuple[str, Interval], ...]
    samples: tuple[Samples, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What a call of ours starts on a GPU: kernels and copies, and the host's time for one of them, measured with an
    empty one in the same process."""

    count: int
    cost_ns: float

    @property
    def ns(self) -> float:
        return self.count * self.cost_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    checked: Checked
    times_ns: tuple[tuple[str, Interval], ...]  # median and 99% interval by implementation name
    # "ours", "eager", "compile" with cold caches; "ours_warm" and so on with warm ones; "eager_again" (A/A).
    # "compile" is torch.compile in the fastest mode that was timed (`compile_mode`), others are "compile:MODE"
    ratios: tuple[
        tuple[str, Interval], ...
    ]  # baseline time / our time, paired: "eager", "compile", each also "_warm"; "aa" (eager / eager)
    samples: tuple[Samples, ...]
    floor_ns: float
    bytes_moved: int
    flops: int
    stations: tuple[Station, ...] = ()
    phases: tuple[Phase, ...] = ()  # in training; the times above are then those of a whole step
    peak_bytes: tuple[tuple[str, int], ...] = ()  # memory at the peak of a call, by implementation, where it was seen
    resolution_ns: float = 0.0  # what differs by less, between two processes, is taken for equal
    # What the judge's clock sees of one of our calls beyond its tick, more than it sees of eager's: nothing but noise.
    unseen_ns: Interval | None = None
    row_excess_ns: Interval | None = None  # what one more of our calls in a row costs beyond that; None: calls too long
    new_excess_ns: Interval | None = None  # what a call costs more on contents that are new as a whole than in part
    undecided: bool = False  # noise hid to the end whether the last is more than nothing: no gain can be claimed
    device: tuple[DeviceState, ...] = ()  # before and after timing
    launches: Launches | None = None  # None: not seen, or not on a GPU
    compile_mode: str = "default"
    compile_remembered: str = ""  # the day on which it was timed beside eager, where it was not in these rounds

    @property
    def launch_bound(self) -> bool:
        """Whether our call takes no longer than the host needs to start its kernels."""
        mine = self.time("ours_warm") or self.time("ours")
        return self.launches is not None and mine is not None and mine.mid <= self.launches.ns

    def faster_than(self, baseline: str) -> bool:
        """Whether a gain may be claimed: the whole interval lies above 1, by more than LEAST_GAIN, than eager differs
        from itself in the same rounds, and than two processes differ that run the same code (`resolution_ns`). The
        fastest bursts must differ by as much: others on the machine hold a process back for long, and not for ever.
        None is while noise hides whether ours works on what it kept of earlier calls (`undecided`)."""
        return not self.doubt(baseline)

    def doubt(self, baseline: str) -> str:
        """Why no gain may be claimed; "" where it may."""
        ratio, again, mine = self.ratio(baseline), self.ratio("aa"), self.time("ours")
        if ratio is None or mine is None:
            return "it was not timed"
        if ratio.low <= 1 + LEAST_GAIN:
            return "the interval does not lie above 1"
        if self.undecided:
            return "noise hid whether it works on what it kept of earlier calls"
        noise = abs(again.mid - 1) if again is not None else 0.0
        if ratio.low <= 1 + noise:
            return f"{baseline} differs from itself by {noise:.0%} in the same rounds"
        least = 1 + max(LEAST_GAIN, noise, self.resolution_ns / mine.mid)
        seen = {s.name: [median(b) for b in s.bursts_ns if b] for s in self.samples if s.name in ("ours", baseline)}
        fastest = {name: min(medians) for name, medians in seen.items() if medians}
        if len(fastest) == 2 and fastest[baseline] <= fastest["ours"] * least:
            return f"its quickest calls are not quicker than {baseline}'s by as much"
        return "" if ratio.low > least else "two processes that run the same code differ by as much"

    def time(self, name: str) -> Interval | None:
        return dict(self.times_ns).get(name)

    def ratio(self, name: str) -> Interval | None:
        return dict(self.ratios).get(name)

    @property
    def compile_title(self) -> str:
        """torch.compile as "compile" stands for it, with its mode where that is not the default."""
        told = [] if self.compile_mode == "default" else [self.compile_mode]
        told += [f"timed {self.compile_remembered}"] if self.compile_remembered else []
        return f"torch.compile ({', '.join(told)})" if told else "torch.compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitized:
    """What was found of a candidate's use of memory on the smallest case: nothing, by the tools in `clean`.
    `notes`: warnings, errors in kernels that are not its own, and why a tool did not run to the end."""

    clean: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A call of the first case as a CUDA graph: it was recorded, filled with other inputs, replayed, and right. Times
    of a replay with cold caches, ns; `eager` is the module's own, recorded in its process, `ratio` that over ours. None
    where the module itself can't be recorded: `why`."""

    ours_ns: Interval
    eager_ns: Interval | None
    ratio: Interval | None
    why: str = ""

    @property
    def pays(self) -> bool:
        """Whether whoever records the module gains by it, beyond what two processes of the same code differ by."""
        return self.ratio is None or self.ratio.low > 1 + LEAST_GAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTime:
    """What a call spent in one kernel, or on the CPU in one of torch's operators, each without what it calls: `origin`
    is whose code that is ("own", "torch", "cuBLAS"), `times` how often it ran, `ns` all of them together."""

    name: str
    origin: str
    times: int
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """One call of the first case under torch's profiler, which slows it: the names that took longest first; `ns` and
    `kinds` also count those that were left out. Not run at all: the kernels of its code, in the diagnosis alone."""

    longest: tuple[NamedTime, ...]
    kinds: int
    ns: float
    launches: Launches | None = None
    diagnosis: Diagnosis | None = None  # None: of a journal from before there was one


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTime:
    """One tuned point: ns per call of the whole module at it, or why it could not run."""

    point: tuple[tuple[str, int | str | bool], ...]
    time_ns: Interval | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantTime:
    """One candidate of an Interleave: ns per call, and the first candidate's time over its own, paired by round; None,
    with the `failure`, where it did not run or was wrong."""

    time_ns: Interval | None
    ratio: Interval | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """Candidates timed in turns, in the order given; the first is what the others are held against."""

    variants: tuple[VariantTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Points measured interleaved in one cell, in the order given."""

    points: tuple[PointTime, ...]
