"""What Nsight Compute prints of a report: tables in CSV, a row for each kernel, units in the second line.

ncu --import REPORT --csv --page raw       every metric of every launch
ncu --import REPORT --csv --page details   the same by sections, and what the tool's own rules say of them
ncu --import REPORT --csv --page source    instructions, with the samples of warps that were found at them
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...facts.profile import HotSpot, Measure, Question

# What tells a kernel's limit, in few passes; and what more there is to each question.
FIRST = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
MORE: Mapping[Question, tuple[str, ...]] = MappingProxyType({
    "memory": (
        "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables", "SourceCounters",
    ),
    "compute": ("ComputeWorkloadAnalysis", "InstructionStats", "SchedulerStats", "SourceCounters"),
    "latency": ("SchedulerStats", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables", "SourceCounters"),
})  # fmt: skip

_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BYTES = re.compile(r"^([KMGT]?)(?:byte|B)(/\w+)?$")
_HERTZ = re.compile(r"^([KMGkmg]?)[hH]z$")
_TIMES = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9,
}  # fmt: skip
_RATES = {"second": 1.0, "s": 1.0, "nsecond": 1e9, "ns": 1e9, "usecond": 1e6, "us": 1e6, "msecond": 1e3, "ms": 1e3}
_NAME, _ID = "Kernel Name", "ID"
_SAMPLES = ("Warp Stall Sampling (All Samples)", "# Samples")
_NOT_ISSUED, _ISSUED = "(Not Issued)", "stall_selected"
_STALLS = {"long_sb": "long scoreboard", "short_sb": "short scoreboard", "mio": "mio throttle", "lg": "lg throttle",
           "tex": "tex throttle", "math": "math pipe throttle", "no_inst": "no instruction"}  # fmt: skip
_MOST_HOT = 3
# Rules that hold for memory that nobody asked to be compressed, and that say what stalls say.
_IDLE_RULES = ("MemoryL2Compression", "CPIStall")


@dataclass(frozen=True, slots=True)
class Counted:
    """One launch: its kernel's name, and its metrics in base units (ns, byte, byte/s, Hz, %)."""

    name: str
    metrics: Mapping[str, Measure]

    def get(self, *names: str) -> float | None:
        """The first of these metrics that was collected."""
        return next((self.metrics[n].value for n in names if n in self.metrics), None)

    def most(self, pattern: str) -> float | None:
        """The largest of the metrics whose whole names match."""
        found = [m.value for n, m in self.metrics.items() if re.fullmatch(pattern, n)]
        return max(found, default=None)


@dataclass(frozen=True, slots=True)
class Advice:
    """What a rule of the tool's says of a launch (by its number in the report); `speedup`: the share of the kernel's
    time that it reckons to save."""

    launch: int
    rule: str
    text: str
    speedup: float


def counted(raw: str) -> tuple[Counted, ...]:
    """The launches of the raw page, in their order; () of a text that holds no table."""
    rows = _table(raw)
    if len(rows) < 2:
        return ()
    names, units = rows[0], rows[1]
    first = names.index(_NAME)
    found = []
    for row in rows[2:]:
        if len(row) != len(names):
            continue  # cut off in the middle of a line
        metrics = {}
        for name, unit, text in zip(names, units, row, strict=True):
            value = _number(text)
            if value is not None and "__" in name:
                metrics[name] = _in_base_units(name, value, unit)
        found.append(Counted(row[first], MappingProxyType(metrics)))
    return tuple(found)


def advice(details: str) -> tuple[Advice, ...]:
    """What the tool's rules recommend that reckon with the whole kernel's time, in the order of the page."""
    rows = _table(details)
    if not rows or "Rule Description" not in rows[0]:
        return ()
    place = {name: i for i, name in enumerate(rows[0])}
    found = []
    for row in rows[1:]:
        if len(row) != len(rows[0]):  # a metric: its row ends before the columns of rules
            continue
        name, said = row[place["Rule Name"]], _number(row[place["Estimated Speedup"]])
        whole = row[place["Estimated Speedup Type"]] == "global"  # of the kernel's time; else of one unit's use
        if whole and said is not None and name not in _IDLE_RULES:
            found.append(Advice(int(row[place[_ID]]), name, row[place["Rule Description"]], said / 100))
    return tuple(found)


def hot_spots(source: str) -> tuple[HotSpot, ...]:
    """The instructions at which warps were found most often, of the first kernel of the source page."""
    header: list[str] = []
    rows: list[list[str]] = []
    for row in csv.reader(source.splitlines()):
        if "Source" in row and any(name in row for name in _SAMPLES):
            if header:
                break
            header = row
        elif header and len(row) == len(header):
            rows.append(row)
    if not header:
        return ()
    samples = next(header.index(name) for name in _SAMPLES if name in header)
    text = header.index("Source")
    reasons = [
        (i, name) for i, name in enumerate(header)
        if name.startswith("stall_") and not name.endswith(_NOT_ISSUED) and name != _ISSUED
    ]  # fmt: skip
    total = sum(_number(row[samples]) or 0.0 for row in rows)
    found = []
    for row in sorted(rows, key=lambda r: -(_number(r[samples]) or 0.0))[:_MOST_HOT]:
        here = _number(row[samples]) or 0.0
        if here <= 0 or total <= 0:
            break
        most = max(reasons, key=lambda r: _number(row[r[0]]) or 0.0, default=None)
        why = most[1].removeprefix("stall_") if most is not None and (_number(row[most[0]]) or 0.0) > 0 else ""
        why = _STALLS.get(why, why.replace("_", " "))
        found.append(HotSpot(where=" ".join(row[text].split())[:160], share=here / total, why=why))
    return tuple(found)


def _table(text: str) -> list[list[str]]:
    """The rows from the head of the table on; whatever the tool says before it is left out."""
    rows = _rows(text)
    for row in rows:
        if _NAME in row and _ID in row:
            return [row, *rows]
    return []


def _rows(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(text.splitlines())
    except csv.Error:
        return


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").strip())
    except ValueError:
        return None


def _in_base_units(name: str, value: float, unit: str) -> Measure:
    unit = unit.strip()
    if unit in _TIMES:
        return Measure(name=name, value=value * _TIMES[unit], unit="ns")
    if found := _BYTES.match(unit):
        per = _RATES.get(found[2][1:]) if found[2] else None
        if per is not None:
            return Measure(name=name, value=value * _SCALES[found[1]] * per, unit="byte/s")
        return Measure(name=name, value=value * _SCALES[found[1]], unit="byte" + (found[2] or ""))
    if found := _HERTZ.match(unit):
        return Measure(name=name, value=value * _SCALES[found[1].upper() or ""], unit="Hz")
    return Measure(name=name, value=value, unit=unit)
