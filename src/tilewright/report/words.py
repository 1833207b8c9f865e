"""Numbers and values as a reader wants them: units, few digits, no surprises."""

from __future__ import annotations

from collections.abc import Mapping

from ..facts.dialogue import Reply
from ..facts.machine import Machine
from ..facts.outcome import Captured, Inspected, Interval, Sanitized, Timed
from ..facts.space import Point
from ..facts.verdict import Verified

_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SCALE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

NAMES = {
    "eager": "eager", "compile": "torch.compile", "ours": "ours", "eager_again": "eager, again",
    "eager_warm": "eager, warm caches", "compile_warm": "torch.compile, warm", "ours_warm": "ours, warm caches",
}  # fmt: skip
PLAYERS = ("eager", "compile", "ours", "eager_warm", "compile_warm", "ours_warm")


def named(name: str, timed: Timed) -> str:
    """An implementation as the reader knows it; torch.compile with its mode."""
    if name.startswith("compile:"):
        return f"torch.compile ({name.removeprefix('compile:')})"
    return NAMES[name].replace("torch.compile", timed.compile_title)


def players(timed: Timed) -> tuple[str, ...]:
    """Those whose times a reader sees, in order: torch.compile's slower modes with cold caches alone."""
    modes = [name for name, _ in timed.times_ns if name.startswith("compile:") and not name.endswith("_warm")]
    return (*PLAYERS[:2], *modes, *PLAYERS[2:])


def digits(value: float) -> str:
    """Three significant digits without an exponent: 1.23, 12.3, 123."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def duration(ns: float) -> str:
    scale, unit = next((s, u) for s, u in _TIME if ns >= s or s == 1.0)
    return f"{digits(ns / scale)} {unit}"


def span(times: Interval) -> str:
    """An interval of times in one unit: "1.22 - 1.25 ms"."""
    scale, unit = next((s, u) for s, u in _TIME if times.mid >= s or s == 1.0)
    return f"{digits(times.low / scale)} – {digits(times.high / scale)} {unit}"


def rate(per_s: float, unit: str) -> str:
    scale, prefix = next((s, p) for s, p in _SCALE if per_s >= s or s == 1.0)
    return f"{digits(per_s / scale)} {prefix}{unit}"


def amount(count: float, unit: str = "B") -> str:
    return rate(count, unit)


def capacity(count: int) -> str:
    """Bytes of a cache or memory, in binary units."""
    return f"{digits(count / 2**20)} MiB"


def times(ratio: Interval) -> str:
    """A ratio with its interval: "1.31x [1.29, 1.33]"."""
    return f"{digits(ratio.mid)}x [{digits(ratio.low)}, {digits(ratio.high)}]"


def loaded(machine: Machine) -> str:
    """What must be said of rates that others' load may have lowered."""
    return " while others had the processors, so that the floor may be too high" if machine.under_load else ""


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def shares(found: tuple[tuple[str, float], ...]) -> str:
    """Shares by origin: "own 96%, copy 4%"; what is under half a percent is left out."""
    return ", ".join(f"{who} {percent(share)}" for who, share in found if share >= 0.005)


def reply(found: Reply) -> str:
    """Who replied, with how many tokens, at which price; what is unknown is said to be."""
    tokens = (
        f"{found.usage.input_tokens} tokens in, {found.usage.output_tokens} out" if found.usage else "tokens unknown"
    )
    price = "price unknown" if found.price_usd is None else f"${found.price_usd:.4f}"
    return f"{found.model}: {tokens}, {price}" + (", cut off at its greatest length" if found.truncated else "")


def sanitized(found: Sanitized) -> tuple[str, ...]:
    """A line for the tools that found nothing, and one for each remark."""
    by = "compute-sanitizer" if "memcheck" in found.clean or "racecheck" in found.clean else "memory"
    clean = (f"{by}, on the smallest case: no errors by {' and '.join(found.clean)}",)
    return (clean if found.clean else ()) + found.notes


def captured(found: Captured) -> str:
    """What a recorded call takes, beside the module's own."""
    told = f"as a CUDA graph, filled anew and replayed: right, {duration(found.ours_ns.mid)}"
    if found.ratio is None:
        return f"{told}; the module itself can't be recorded: {found.why}"
    return f"{told}, {times(found.ratio)} as fast as the module as a CUDA graph"


def verified(found: Verified) -> str:
    """What each verifier says, with its reasons."""
    return "; ".join(f"{v.verifier}: {v.says}" + (f" ({v.why})" if v.why else "") for v in found.verdicts)


def inspected(found: Inspected) -> str:
    """Where the time of a profiled call went, the longest names first."""
    told = (f"{n.name[:60]} {percent(n.ns / found.ns)}" for n in found.longest[:3] if found.ns > 0)
    line = f"{duration(found.ns)} in {found.kinds} {'name' if found.kinds == 1 else 'names'}: " + ", ".join(told)
    return f"{line}; {found.diagnosis.limit}" if found.diagnosis else line


def launch_bound(timed: Timed) -> str:
    """One line for a module whose call takes no longer than the host needs to start its kernels."""
    mine = timed.time("ours_warm") or timed.time("ours")
    if timed.launches is None or mine is None:
        return ""
    count = timed.launches.count
    return (
        f"launch-bound: the call takes {duration(mine.mid)}, and to start its {count} kernel{'s' * (count > 1)} takes "
        f'the host about {duration(timed.launches.ns)}; CUDA graphs (torch.compile(mode="reduce-overhead")) start them '
        "together"
    )


def error(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def settings(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point) or "no knobs"


def tensor(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"


def seconds_by_name(found: Mapping[str, float]) -> str:
    """ "4.2 s (timing 3.1, checking 1.1)": all of them, and what each took, the longest first."""
    told = ", ".join(f"{name} {digits(s)}" for name, s in sorted(found.items(), key=lambda one: -one[1]) if s >= 0.05)
    return f"{sum(found.values()):.1f} s" + (f" ({told})" if told else "")
