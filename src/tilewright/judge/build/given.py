"""A candidate from texts that somebody sends, over another one or alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from ...facts.candidate import Candidate, SourceFile, fault_in
from ...facts.errors import UserError

ENTRY = "model.py"


def candidate_of(texts: Mapping[str, str | None], base: Candidate | None = None) -> Candidate:
    """The files of `base` with these in their place, and without those whose text is None. Raises UserError where no
    candidate comes of it."""
    files = {f.path: f.text for f in base.files} if base else {}
    for path, text in texts.items():
        if fault := fault_in({path: text or ""}):
            raise UserError(fault)
        place = PurePosixPath(path)
        if text is None:
            if files.pop(str(place), None) is None:
                raise UserError(f"{path!r} is to be left out, and is not there; there are {', '.join(sorted(files))}")
        else:
            files[str(place)] = text
    entry = base.entry if base else ENTRY
    if fault := fault_in(files):
        raise UserError(fault)
    if "ModelNew" not in files.get(entry, ""):
        raise UserError(f"no file {entry!r} with a class ModelNew; there are {', '.join(sorted(files)) or 'no files'}")
    return Candidate(files=tuple(SourceFile(path=p, text=t) for p, t in sorted(files.items())), entry=entry)
