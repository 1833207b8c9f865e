"""The table of what was realised on this machine: a folder with one file of facts for each entry, which many may write.

It only saves time: what can't be read counts as not there, and what can't be written is told in a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tilewright.facts import codec
from tilewright.facts.errors import UserError
from tilewright.facts.realised import Realised

from ..tune.exchange import MergeCounts

FOLDER = "patterns"  # in the cache


def remember(folder: Path, entry: Realised) -> str:
    """Keep the entry in the place of what its key had. Returns "" or, as one line, why it could not be kept."""
    path = _place(folder, entry.problem.target, entry.key)
    try:
        _write(path, codec.dumps(entry))
    except OSError as error:
        return f"the realisation was not kept: {path}: {error}"
    return ""


def recall(folder: Path, target: str, key: str) -> Realised | None:
    """The entry of this key, if there is one that can be read."""
    return _read(_place(folder, target, key))


def forget(folder: Path, entry: Realised) -> None:
    """Drop an entry, if it is there."""
    _place(folder, entry.problem.target, entry.key).unlink(missing_ok=True)


def entries(folder: Path) -> tuple[Realised, ...]:
    """All that can be read, by target and title."""
    found = (_read(path) for path in folder.glob("*.json")) if folder.is_dir() else ()
    return tuple(sorted((e for e in found if e is not None), key=lambda e: (e.problem.target, e.title, e.key)))


def export(found: Iterable[Realised], to: Path) -> int:
    """Write entries as one file, a JSON list, without the places of this machine; how many. Raises UserError."""
    bare = [codec.to_plain(replace(e, journal="")) for e in found]
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        _write(to, json.dumps(bare, indent=1))
    except OSError as error:
        raise UserError(f"{to}: the entries can't be written there: {error}") from error
    return len(bare)


def take(folder: Path, other: Path) -> MergeCounts:
    """Import a file of entries: each is to be judged here before it is trusted, and none takes the place of one that
    was. Raises UserError where the file holds anything else; nothing is taken over then."""
    try:
        plain = json.loads(other.read_text(encoding="utf-8"))
        theirs = [codec.read(json.dumps(item), Realised) for item in plain] if isinstance(plain, list) else None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{other}: cannot be read as a file of realisations: {error}") from error
    if theirs is None:
        raise UserError(f"{other}: holds no list; `tilewright patterns export {other}` writes such files")
    counts = {"added": 0, "replaced": 0, "kept": 0}
    for entry in theirs:
        mine = recall(folder, entry.problem.target, entry.key)
        fate = "added" if mine is None else "kept" if mine.judged else "replaced"
        counts[fate] += 1
        if fate != "kept" and (warning := remember(folder, replace(entry, judged=False, journal=""))):
            raise UserError(warning)
    return MergeCounts(**counts)


def _place(folder: Path, target: str, key: str) -> Path:
    if not key.isalnum():
        raise UserError(f"{key!r} is no key of a realisation")
    return folder / f"{target}-{key}.json"


def _read(path: Path) -> Realised | None:
    with suppress(OSError, UnicodeDecodeError, ValueError):
        return codec.read(path.read_text(encoding="utf-8"), Realised)
    return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
