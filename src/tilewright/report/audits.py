"""Audits, drawn: the object and the table of one task, and of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..facts.audit import MOST, TOLERANCES, WHOLE, Audit, DegenerateSolution
from . import words
from .objects import Task
from .ruled import ruled

_COLOURS = {"void": "red", "weak": "yellow", "sound": "green", "note": "dim"}


def audit_object(audit: Audit) -> dict[str, Any]:
    """The object of `audit --json`."""
    found = asdict(audit)
    return {"problem": found.pop("problem"), "verdict": audit.verdict, **found}


def audit_table(audit: Audit) -> Table:
    """One task: the findings, then the figures of every way to degenerate_solution."""
    verdict = f"[bold {_COLOURS[audit.verdict]}]{audit.verdict}[/]"
    drawn = ruled("", "finding", "figure", "threshold", "what it says", numbers=("figure", "threshold"),
                  title=f"{escape(audit.problem)} on {escape(audit.device)}: {verdict}")  # fmt: skip
    for f in audit.findings:
        drawn.add_row(f"[{_COLOURS[f.severity]}]{f.severity}[/]", f.reason.replace("_", " "), _figure(f.figure),
                      _figure(f.threshold), escape(f.summary))  # fmt: skip
    drawn.caption = f"[not italic not dim]{escape(_caption(audit))}[/]"
    return drawn


def degenerate_table(degenerate_solutions: Sequence[DegenerateSolution]) -> Table:
    """What was tried: share of the allowance (at most 1 is accepted), and the tolerance at which allclose accepts."""
    numbers = ("of the allowance", "there, judged", "error", "allclose from")
    drawn = ruled("less work", "", *numbers, numbers=numbers)
    for s in degenerate_solutions:
        judged = "" if s.judged_share is None else _figure(s.judged_share)
        drawn.add_row(s.kind, escape(s.name), _figure(s.share), judged, _figure(s.norm), _figure(s.allow_tf32),
                      style="bold" if s.passes else "")  # fmt: skip
    return drawn


def audits_summary(tasks: Sequence[Task]) -> dict[str, object]:
    """Over many tasks: how many are void, weak and sound, and for what reasons. `mended`: void tasks all of whose grave
    findings the judge's own inputs and weights do away with. A task counts once for each reason."""
    audited = [t for t in tasks if "findings" in t]
    reasons = {
        severity: dict(Counter(r for t in audited for r in _reasons(t, severity)).most_common())
        for severity in ("void", "weak", "note")
    }
    void = [t for t in audited if t["verdict"] == "void"]
    return {
        "tasks": len(tasks), "void": len(void),
        "mended": sum(all(f["mended"] for f in t["findings"] if f["severity"] == "void") for t in void),
        "weak": sum(t["verdict"] == "weak" for t in audited), "sound": sum(t["verdict"] == "sound" for t in audited),
        "failed": len(tasks) - len(audited), "inside_tolerance": _inside(audited), "reasons": reasons,
        "failures": [{"problem": t.get("problem"), **(t.get("verdict") or {})} for t in tasks if "findings" not in t],
    }  # fmt: skip


def audits_table(tasks: Sequence[Task]) -> Table:
    """One line a task, those with something to say first in their order; then the sums."""
    drawn = ruled("task", "verdict", "why")
    for task in tasks:
        if "findings" not in task:
            drawn.add_row(escape(str(task.get("problem"))), "[red]failed[/]", escape(_why_failed(task)))
        elif task["verdict"] != "sound":
            grave = [f for f in task["findings"] if f["severity"] != "note"]
            why = "\n".join(f"{f['severity']}: {f['summary']}" for f in grave)
            verdict = task["verdict"]
            drawn.add_row(escape(str(task["problem"])), f"[{_COLOURS[verdict]}]{verdict}[/]", escape(why))
    total = audits_summary(tasks)
    drawn.caption = (
        f"[not italic not dim]{total['tasks']} tasks: {total['void']} void ({total['mended']} of them not so on the "
        f"judge's own inputs and weights), {total['weak']} weak, {total['sound']} sound, {total['failed']} failed[/]"
    )
    return drawn


def _inside(audited: Sequence[Task]) -> dict[str, int]:
    """Tasks, void ones included, on which a fixed tolerance accepts what is none of the work."""
    found = Counter[str]()
    for task in audited:
        whole = [s for s in task["figures"]["degenerate_solutions"] if s["kind"] in WHOLE and not s["part"]]
        least = min((s["allow_tf32"] for s in whole), default=MOST)
        found.update(f"{t:g}" for t in TOLERANCES if least <= t)
    return {f"{t:g}": found[f"{t:g}"] for t in TOLERANCES}


def _reasons(task: Task, severity: str) -> set[str]:
    return {f["reason"] for f in task["findings"] if f["severity"] == severity}


def _why_failed(task: Task) -> str:
    verdict = task.get("verdict") or {}
    return f"{verdict.get('reason')}: {verdict.get('summary')}"


def _caption(audit: Audit) -> str:
    figures = audit.figures
    lines = [
        f"{len(figures.degenerate_solutions)} ways to do less were tried on {figures.operations} operations "
        f"({audit.seconds:.1f} s); the least accepted: "
        f"{min((s.share for s in figures.degenerate_solutions), default=MOST):.3g} of the allowance",
        f"eager {words.duration(figures.eager_ns)}, floor {words.duration(figures.floor_ns)}; own error "
        f"{words.error(figures.own_error)}; scale {figures.scale:.3g}, spread {figures.spread:.3g} of it",
        *figures.notes,
    ]
    return "\n".join(lines)


def _figure(value: float) -> str:
    return "∞" if value >= MOST else f"{value:.3g}"
