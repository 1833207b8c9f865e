"""What a finished run hands over: report files in its folder, a summary object, a table."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from ..edges.ledger import Ledger
from ..edges.toolchain import SanitizerFinding, versions
from ..facts.errors import UserError
from ..facts.move import Event
from ..facts.run import SearchContext
from ..report import bench_summary, bench_table, html, markdown, summary, table
from ..run.optimize import Finished
from ..run.places import Places
from . import config


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    summary: dict[str, Any]
    table: RenderableType
    lines: tuple[str, ...]


def delivered(finished: Finished, out: Path, *, given_at: Path | None = None) -> Delivered:
    """Write `report.md` and `report.html` into `out`; returns what to print."""
    return _deliver(finished.context, finished.events, out, candidate=given_at or finished.candidate_dir)


def redelivered(out: Path) -> Delivered:
    """The same from the journal alone; UserError if there is none, or the run has not begun."""
    places = Places(out=out, cache=out)
    with Ledger(places.journal, readonly=True) as ledger:
        context = ledger.context()
        events = ledger.events()
    if context is None:
        raise UserError(f"{out}: the run has not judged anything yet; `tilewright resume {out}` continues it")
    return _deliver(context, events, out, candidate=places.candidate if places.candidate.exists() else None)


def _deliver(context: SearchContext, events: Sequence[Event], out: Path, *, candidate: Path | None) -> Delivered:
    texts = {"report.md": markdown(context, events), "report.html": html(context, events)}
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", errors="backslashreplace")
    at = str(candidate) if candidate else ""
    lines = [f"candidate  {at}"] if at else []
    lines += [f"report     {out / 'report.md'}, {out / 'report.html'}", f"journal    {out / 'run.db'}"]
    return Delivered(
        summary=summary(context, events, candidate_dir=at), table=table(context, events), lines=tuple(lines)
    )


def doctor_json(findings: Sequence[SanitizerFinding]) -> dict[str, Any]:
    return {"findings": [asdict(f) for f in findings], "ok": all(f.ok for f in findings)}


def doctor_table(findings: Sequence[SanitizerFinding]) -> Table:
    shown = Table("", "what", "found", "advice", box=None, header_style="bold")
    for finding in findings:
        shown.add_row("ok" if finding.ok else "--", finding.name, finding.value, finding.advice)
    return shown


def stamp() -> str:
    """What made a result: version and commit, with a mark if the tree had uncommitted changes."""
    return f"{dict(versions())['tilewright']} {commit()}"


def commit() -> str:
    """The commit of the code that runs; where it is no checkout, what TILEWRIGHT_COMMIT says."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "--error-unmatch", Path(__file__).name):
            return config.commit()
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "..")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except OSError:  # no git here
        return config.commit()


def bench_tables(tasks: Sequence[dict[str, Any]]) -> tuple[RenderableType, ...]:
    found = bench_summary(list(tasks))
    totals = Table(box=None, show_header=False)
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{part} {number:.2f}" for part, number in value.items())
        if isinstance(value, list):  # the failures: in words below the table already
            continue
        totals.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    return bench_table(list(tasks)), totals
