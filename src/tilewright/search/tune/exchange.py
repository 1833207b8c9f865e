"""Files of winners as things to look at, to take over from somebody, and to give away."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...facts.errors import UserError
from ...facts.pattern import ANY_BATCH
from ...facts.winner import Winner
from .store import COLUMNS, PUT, OtherFormat, from_row, opened, to_row


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCounts:
    """How many entries of another file were new here, took the place of others, or gave way to what is kept here."""

    added: int
    replaced: int
    kept: int


def winners(path: Path, *, immutable: bool = False) -> tuple[Winner, ...]:
    """All winners of a file, by device, title and toolchain; `immutable`: as for `opened`. Raises UserError where it
    can't be read as such."""
    order = "target, device, title, shape_class, driver, torch, dsl, tilewright"
    if not path.is_file():
        raise UserError(f"{path}: no such file of winners; `tilewright tune FILE` makes the first")
    try:
        with opened(path, immutable=immutable) as file:
            rows = file.execute(f"SELECT {COLUMNS} FROM winners ORDER BY {order}").fetchall()
    except (sqlite3.Error, OtherFormat) as error:
        raise UserError(f"{path}: cannot be read as a file of winners: {error}") from error
    return tuple(_parsed(path, row) for row in rows)


def merge(path: Path, other: Path) -> MergeCounts:
    """Take over what `other` knows: of the same device, toolchain and shape class the newer evidence wins. Raises
    UserError where `other` holds anything but winners (nothing is taken over then), or `path` can't be written."""
    theirs = winners(other)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opened(path, create=True) as file:
            file.execute("BEGIN IMMEDIATE")  # what is read here must still hold when it is written
            rows = file.execute(f"SELECT {COLUMNS} FROM winners").fetchall()
            mine = {_key(w): w for w in (_parsed(path, row) for row in rows)}
            fresh = [w for w in theirs if _key(w) not in mine]
            newer = [w for w in theirs if _key(w) in mine and w.found_at > mine[_key(w)].found_at]
            file.executemany(PUT, [to_row(w) for w in (*fresh, *newer)])
            file.commit()
    except (OSError, sqlite3.Error, OtherFormat) as error:
        raise UserError(f"{path}: winners can't be merged into it: {error}") from error
    added, replaced, all_of_them = (len(counted(found)) for found in (fresh, newer, theirs))
    return MergeCounts(added=added, replaced=replaced, kept=all_of_them - added - replaced)


def counted(found: Sequence[Winner]) -> tuple[Winner, ...]:
    """Without the second entry of each, by which other batches find it."""
    return tuple(w for w in found if not w.shape_class.startswith(ANY_BATCH))


def export(found: Sequence[Winner], to: Path, *, add: bool = False) -> None:
    """Write the winners as one file that can be copied, and read where nothing can be written. An existing file is
    replaced; with `add`, what it holds stays, but for winners of which the newer evidence is at hand. Raises UserError
    where it can't be written, or, with `add`, read."""
    if add and to.exists():
        newest = {_key(w): w for w in sorted((*winners(to), *found), key=lambda w: w.found_at)}
        found = tuple(newest.values())
    part = to.with_name(f"{to.name}.{os.getpid()}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with opened(part, create=True) as file:
            with file:
                file.executemany(PUT, [to_row(w) for w in found])
            file.execute("PRAGMA journal_mode = DELETE")  # no log beside it
            file.execute("PRAGMA page_size = 512")  # rows of 2 KB leave half of each larger page empty
            file.execute("VACUUM")
        part.replace(to)
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"{to}: winners can't be written there: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _key(winner: Winner) -> tuple[object, ...]:
    return winner.target, winner.device, winner.toolchain, winner.shape_class


def _parsed(path: Path, row: Sequence[object]) -> Winner:
    try:
        return from_row(row)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
