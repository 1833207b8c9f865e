"""What lies in folders: runs with their journals, results of single tasks, and result files of whole campaigns."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...facts.errors import UserError

JOURNAL, STAMP, CANDIDATE = "run.db", ".stamp", "candidate"
INDEX = "site.json"  # of a site that was written
LIBRARY = "tilewright_kernels"  # the folder of a candidate that holds copies of skeletons
_MOST_JSON_BYTES = 64 << 20
_MOST_FILES, _MOST_TEXT_BYTES = 40, 400_000  # of a delivered candidate's own code


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSource:
    """Something that may hold a result. `place`: where it lies, below the folder that was named, with that folder's
    name; `beside`: the result that `bench` kept of a run, beside the run's folder."""

    kind: Literal["run", "begun", "json"]
    path: Path
    place: str
    beside: Path | None = None

    def digest(self) -> str:
        """Hex digest over all that pages are made of; OSError where it can't be read."""
        found = hashlib.sha256(f"{self.kind}\0{self.place}".encode(errors="replace"))
        for path in self._files():
            found.update(f"\0{path.name}\0{path.stat().st_size}\0".encode(errors="replace"))
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    found.update(block)
        return found.hexdigest()

    def states(self) -> tuple[tuple[int, ...], ...]:
        """Of the same files what tells cheaply whether they are as they were: which, how long, when written."""
        return tuple(state for path in self._files() if (state := state_of(path)))

    def _files(self) -> Iterator[Path]:
        if self.kind == "json":
            yield self.path
            return
        journal = self.path / JOURNAL
        yield from (p for p in (journal, journal.with_name(JOURNAL + "-wal"), self.beside) if p and p.is_file())
        yield from code_files(self.path / CANDIDATE)


def state_of(path: Path) -> tuple[int, ...]:
    """() where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def sources(folders: Sequence[Path]) -> tuple[ResultSource, ...]:
    """All that lies in the folders at any depth, each once, in the order of their places; links to folders are not
    followed. UserError for a folder that is not there."""
    seen: set[Path] = set()
    found: list[ResultSource] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; give folders of runs, or of results of `tilewright bench`")
        root = folder.resolve()
        fresh = [s for s in _below(root, root.name or "root") if s.path.resolve() not in seen]
        seen |= {s.path.resolve() for s in fresh}
        found += fresh
    return tuple(sorted(found, key=lambda s: (s.place, str(s.path))))


def code_files(folder: Path) -> list[Path]:
    """The files of a delivered candidate but for copies of skeletons, those that are text of readable length."""
    found: list[Path] = []
    for where, folders, names in os.walk(folder) if not folder.is_symlink() else ():
        folders[:] = sorted(name for name in folders if name not in (LIBRARY, "__pycache__"))
        paths = (Path(where, name) for name in sorted(names))
        found += [p for p in paths if not p.is_symlink() and p.is_file() and p.stat().st_size <= _MOST_TEXT_BYTES]
        if len(found) >= _MOST_FILES:
            break
    return found[:_MOST_FILES]


def _below(root: Path, name: str) -> Iterator[ResultSource]:
    for where, folders, files in os.walk(root, onerror=None):
        here = Path(where)
        place = "/".join((name, *here.relative_to(root).parts))
        if JOURNAL in files or STAMP in files:
            beside = here.with_name(f"{here.name}.json")
            kind: Literal["run", "begun"] = "run" if JOURNAL in files else "begun"
            yield ResultSource(kind=kind, path=here, place=place, beside=beside if beside.is_file() else None)
            folders.clear()
            continue
        if INDEX in files and "assets" in folders:  # a site, perhaps of this folder
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in ("__pycache__", CANDIDATE))
        runs = {f for f in folders if (here / f / JOURNAL).is_file() or (here / f / STAMP).is_file()}
        yield from _results((here / file for file in sorted(files)), place, runs)


def _results(files: Iterable[Path], place: str, runs: set[str]) -> Iterator[ResultSource]:
    """Of the JSON files those that belong to no run."""
    for path in files:
        if path.suffix == ".json" and path.stem not in runs and path.stat().st_size <= _MOST_JSON_BYTES:
            yield ResultSource(kind="json", path=path, place=f"{place}/{path.name}")
