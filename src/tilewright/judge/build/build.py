"""Build: put a candidate's files in a fresh cell's private folder and import it there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ...facts.candidate import Candidate
from ...facts.outcome import Built, Failure
from ..client import Cell, CellFault
from ..wire import messages as wire


def failure(stage: str, fault: CellFault) -> Failure:
    """What went wrong in a candidate's cell, as its fault."""
    reason = fault.reason if fault.by_code else "broke_the_cell"
    return Failure(stage=stage, reason=reason, summary=fault.summary, excerpt=fault.excerpt)  # type: ignore[arg-type]


def lay_out(candidate: Candidate, folder: Path) -> Failure | None:
    """Write the candidate's files into `folder`; a Failure where one would lie elsewhere."""
    for file in candidate.files:
        place = PurePosixPath(file.path)
        if place.is_absolute() or ".." in place.parts:
            return Failure(
                stage="build", reason="no_entry", summary=f"{file.path!r} does not lie in the candidate's folder"
            )
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(file.text)
    return None


def build(candidate: Candidate, cell: Cell, *, limit_s: float, compiled: Sequence[Path] = ()) -> Built | Failure:
    """Import the candidate in `cell`, which has run no other code. Compilation that happens on import is part of it.
    `compiled`: libraries of its kernels that were built ahead; the cell gets copies, so that it can't change what
    others get."""
    started = time.monotonic()
    folder = cell.plan.folder / "candidate"
    refused = lay_out(candidate, folder)
    if refused is not None:
        return refused
    for library in compiled:
        (folder / "build").mkdir(exist_ok=True)
        shutil.copyfile(library, folder / "build" / library.name)
    try:
        cell.do(wire.LoadCandidate(folder=str(folder), entry=candidate.entry), limit_s=limit_s)
    except CellFault as fault:
        return failure("build", fault)
    return Built(
        candidate_id=candidate.id, build_s=time.monotonic() - started, protections=cell.protections,
        missing_protections=cell.missing,
    )  # fmt: skip


def compiled_late(cell: Cell, ahead: Sequence[Path]) -> int:
    """How many kernels the cell has compiled since `build` gave it those that were built ahead; where it got none, none
    was to be expected."""
    folder = cell.plan.folder / "candidate" / "build"
    made = {p.name for p in folder.glob("*") if p.suffix in (".o", ".so")} - {p.name for p in ahead}
    return len(made) if ahead else 0
