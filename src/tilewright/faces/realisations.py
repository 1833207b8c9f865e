"""What `tilewright patterns` does with the table of realisations: shows it, judges it anew, gives it away, takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..edges.gpu.machine import identity, machine
from ..facts.document import Document
from ..facts.errors import UserError
from ..facts.problem import Target
from ..facts.realised import Realised
from ..facts.run import Timing
from ..report.realisations import realised_object, realised_text
from ..search.retrieve import store as table

_TIMING = Timing(budget_s=2.0, compiled=False)


def realised(cache: Path) -> list[dict[str, Any]]:
    """Every entry, as `patterns list --json` prints it."""
    return [realised_object(e, doubt=_doubt(e)) for e in table.entries(cache / table.FOLDER)]


def whole(cache: Path, key: str) -> tuple[dict[str, Any], str] | None:
    """The entry of a key, as an object and as text; None where there is none."""
    for entry in table.entries(cache / table.FOLDER):
        if entry.key == key:
            why = _doubt(entry)
            return realised_object(entry, doubt=why), realised_text(entry, doubt=why)
    return None


def documents(cache: Path) -> list[Document]:
    """The entries, as the index finds them."""
    from ..run.realisations import document_of  # it brings torch along

    return [document_of(e) for e in table.entries(cache / table.FOLDER)]


def checked(cache: Path, key: str, *, seed: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Judge anew the entry of this key, or ("") all that are not trusted; what became of each. Those for a device that
    is not here stay as they are. UserError where a key names none."""
    from ..run.recheck import recheck  # it brings torch along

    found = table.entries(cache / table.FOLDER)
    chosen = [e for e in found if e.key == key] if key else [e for e in found if _doubt(e)]
    if key and not chosen:
        raise UserError(f"{key}: no realisation has this key; `tilewright patterns list` shows them")
    results = []
    for entry in chosen:
        told: dict[str, Any] = {"key": entry.key, "title": entry.title, "target": entry.problem.target}
        if _absent(entry.problem.target):
            results.append(told | {"fate": "left", "why": "no such device here"})
            continue
        here = machine(entry.problem.target, cache_dir=cache)
        done = recheck(entry, machine=here, cache=cache, seed=seed, timing=_TIMING, say=say)
        ratio = asdict(done.now.ratio) if done.now is not None else None
        results.append(told | {"fate": "kept" if done.now else "dropped", "why": done.why, "ratio": ratio})
    return results


def removed(cache: Path, key: str) -> list[dict[str, Any]]:
    """Drop what is kept under this key, for every target; what was dropped. UserError where the key names nothing."""
    found = [e for e in table.entries(cache / table.FOLDER) if e.key == key]
    if not found:
        raise UserError(f"{key}: no realisation has this key; `tilewright patterns list` shows them")
    for entry in found:
        table.forget(cache / table.FOLDER, entry)
    return [realised_object(e, doubt=_doubt(e)) for e in found]


def exported(cache: Path, to: Path) -> dict[str, int]:
    return {"exported": table.export(table.entries(cache / table.FOLDER), to)}


def imported(cache: Path, file: Path) -> dict[str, int]:
    return asdict(table.take(cache / table.FOLDER, file))


def _absent(target: Target) -> bool:
    try:
        identity(target)
    except UserError:
        return True
    return False


def _doubt(entry: Realised) -> str:
    if _absent(entry.problem.target):
        return "no such device here"
    from ..run.realisations import doubt_of  # it brings torch along

    return doubt_of(entry, identity(entry.problem.target))
