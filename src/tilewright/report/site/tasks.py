"""Results that others wrote, as objects of `optimize --json`: read with care, cut down to what a leaderboard shows."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..objects import Task

STATUSES = ("improved", "no_improvement", "failed", "unfinished", "pending")
_MOST_TEXT = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """A file of results: one task, or the tasks of a campaign with what is said of them all (`head`)."""

    tasks: tuple[Task, ...]
    head: tuple[tuple[str, str], ...]


def read_results(path: Path) -> ResultFile | None:
    """None where the file holds no judged task. Raises ValueError where it is no JSON, and OSError."""
    try:
        whole = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(whole, dict):
        return None
    if _is_task(whole):
        return ResultFile(tasks=(task_of(whole, {}),), head=())
    listed = whole.get("tasks")
    tasks = [task_of(t, whole) for t in listed if _is_task(t)] if isinstance(listed, list) else []
    head = [(name, _text(whole.get(name))) for name in ("what", "command", "commit", "date", "device", "note")]
    return ResultFile(tasks=tuple(tasks), head=tuple((n, t) for n, t in head if t)) if tasks else None


def _is_task(value: object) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("problem"), str) and value.get("status") in STATUSES
        and isinstance(value.get("verdict"), dict)
    )  # fmt: skip


def task_of(found: Mapping[str, Any], whole: Mapping[str, Any]) -> Task:
    """What a leaderboard needs of a task, every value of its proper type; `whole`: the file that it stands in, which
    says what its tasks have in common."""
    verdict, machine = _map(found.get("verdict")), _map(found.get("machine")) or _map(whole.get("machine"))
    command = _words(_text(whole.get("command")))
    algebra = _map(found.get("algebra"))
    return {
        "problem": found["problem"][:_MOST_TEXT], "status": found["status"],
        "strategy": _text(found.get("strategy")) or _strategy(command), "mode": _text(found.get("mode")) or "inference",
        "device": _text(machine.get("device")) or _text(whole.get("device")) or "unknown",
        "verdict": {k: _text(verdict.get(k)) for k in ("stage", "reason", "summary", "excerpt")}
        | {"accepted": verdict.get("accepted") is True},
        "times_ns": _intervals(found.get("times_ns")), "ratio": _intervals(found.get("ratio")),
        "floor_share": _number(found.get("floor_share")),
        "patterns": [_pattern(p) for p in _list(found.get("patterns"))[:100] if isinstance(p, dict)],
        "whose": _text(found.get("whose")) or "candidate",
        "algebra": {"kept": True, "without": _interval(algebra.get("without"))} if algebra.get("kept") is True else {},
    }  # fmt: skip


def _strategy(command: list[str]) -> str:
    """The strategy that a command names, or its default."""
    if "--strategy" in command[:-1]:
        return command[command.index("--strategy") + 1]
    return "cutegen" if "--model" in command else "catalog"


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _pattern(found: Mapping[str, Any]) -> dict[str, str]:
    point = found.get("point")
    told = " ".join(f"{k}={v}" for k, v in point.items()) if isinstance(point, dict) else _text(point)
    return {"title": _text(found.get("title")), "point": told[:_MOST_TEXT]}


def _text(value: object) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e30 and math.isfinite(value) else None  # type: ignore[operator, arg-type]


def _interval(value: object) -> dict[str, float] | None:
    """With all three of its numbers; a file that keeps the middle alone has the ends from that."""
    found = _map(value)
    mid = _number(found.get("mid"))
    if mid is None:
        return None
    low, high = _number(found.get("low")) or mid, _number(found.get("high")) or mid
    return {"low": min(low, mid), "mid": mid, "high": max(high, mid)}


def _intervals(value: object) -> dict[str, dict[str, float]]:
    return {str(k): found for k, v in list(_map(value).items())[:50] if (found := _interval(v)) is not None}
