"""The leaderboard: problems by strategies by cards, with ratios, intervals and fast_p."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...facts.outcome import Interval
from .. import words
from ..objects import bench_summary, geomean, ratio_of
from .entries import Entry

_LABELS = {
    "improved": "improved", "no_improvement": "no improvement", "failed": "failed", "unfinished": "not ended",
    "pending": "pending", "damaged": "damaged",
}  # fmt: skip
_ORDER = tuple(_LABELS)
PASSES = ("0", "1", "1.5", "2")  # the p of fast_p


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a table of results: of one entry, or of all runs of one strategy on one problem and card. `ratio` and
    `interval`: of eager's time over ours; `best`: of the better of eager and torch.compile over ours."""

    entry: Entry  # that which reached most
    runs: int
    status: str
    label: str
    ratio: str
    interval: str
    best: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One strategy on one card. `passed`: the share of its runs above each p of PASSES."""

    strategy: str
    card: str
    mode: str
    runs: int
    problems: int
    eager: str
    best: str
    won: str
    passed: tuple[str, ...]
    failed: int


def rows(entries: Iterable[Entry]) -> tuple[Row, ...]:
    """A row for each entry, problems in their order, the fastest first."""
    return tuple(_row([entry]) for entry in sorted(entries, key=_place))


def standings(entries: Iterable[Entry]) -> tuple[Row, ...]:
    """A row for each problem, strategy, card and mode; what has no result yet, or is damaged, stands in none."""
    by: dict[tuple[str, str, str, str], list[Entry]] = {}
    for entry in sorted((e for e in entries if has_result(e)), key=_place):
        by.setdefault((entry.problem, entry.strategy, entry.card, entry.mode), []).append(entry)
    found = [_row(group) for group in by.values()]
    return tuple(sorted(found, key=lambda row: (natural(row.entry.problem), -_speed(row.entry))))


def totals(entries: Sequence[Entry]) -> tuple[Total, ...]:
    """For each strategy, card and mode, cards with most results first. Each run counts once, what failed or was kept as
    it is as 1.0."""
    by: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        if has_result(entry):
            by.setdefault((entry.card, entry.mode, entry.strategy), []).append(entry)
    runs = Counter(entry.card for entry in entries)
    return tuple(_total(group) for key, group in sorted(by.items(), key=lambda one: (-runs[one[0][0]], one[0])))


def has_result(entry: Entry) -> bool:
    return entry.status in ("improved", "no_improvement", "failed")


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that has 9 before 10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", text[:200])
    return tuple((0, int(p), "") if p.isdecimal() and p.isascii() else (1, 0, p.casefold()) for p in parts)


def label(status: str) -> str:
    return _LABELS.get(status, status)


def choices(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values), key=natural))


def _total(group: Sequence[Entry]) -> Total:
    found = bench_summary([e.task for e in group])
    passes = found["fast_p"]
    assert isinstance(passes, dict)
    eager, share = found["geomean_eager"], found["share_won"]
    return Total(
        strategy=group[0].strategy, card=group[0].card, mode=group[0].mode, runs=len(group),
        problems=len({e.problem for e in group}), eager=_times(eager), best=_best(group), won=_percent(share),
        passed=tuple(_percent(passes[p]) for p in PASSES), failed=sum(e.status == "failed" for e in group),
    )  # fmt: skip


def _row(group: Sequence[Entry]) -> Row:
    """Of several runs the geometric mean, and the span that their intervals cover together."""
    first = max(group, key=_speed)
    judged = has_result(first)
    spans = [span for e in group if (span := _interval(e)) is not None]
    mean = geomean(ratio_of(e.task, "eager") for e in group)
    interval = f"{min(s.low for s in spans):.2f} – {max(s.high for s in spans):.2f}" if spans and judged else ""
    return Row(
        entry=first, runs=len(group), status=first.status, label=label(first.status),
        ratio=_times(mean) if judged else "", interval=interval, best=_best(group) if judged else "", said=first.said,
    )  # fmt: skip


def _best(group: Sequence[Entry]) -> str:
    """The geometric mean against the better of eager and torch.compile, of those that timed both; "" where none did."""
    both = [e.task for e in group if "compile" in e.task["ratio"] or "compile" in e.task["times_ns"]]
    return _times(geomean(ratio_of(task, "best") for task in both))


def _interval(entry: Entry) -> Interval | None:
    found = entry.task["ratio"].get("eager")
    return Interval(**found) if found and entry.status != "failed" else None


def _speed(entry: Entry) -> float:
    return ratio_of(entry.task, "eager") if has_result(entry) and entry.status != "failed" else 0.0


def _place(entry: Entry) -> tuple[object, ...]:
    return natural(entry.problem), entry.strategy, entry.card, _ORDER.index(entry.status), -_speed(entry), entry.id


def _times(value: object) -> str:
    return f"{words.digits(value)}×" if isinstance(value, float) else ""


def _percent(value: object) -> str:
    return words.percent(float(value)) if isinstance(value, int | float) else ""
