"""The file of a journal: SQLite in WAL mode, with one writer, and readable errors for what is no journal."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ...facts import codec
from ...facts.errors import UserError

FORMAT = 5
_READ = 4  # an older format, which differs in names (see `facts.codec`)
_OF_THE_DISK = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY", "SQLITE_LOCKED",
                "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_NOMEM")  # fmt: skip

_SCHEMA = """
CREATE TABLE IF NOT EXISTS text (digest TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record (name TEXT PRIMARY KEY, digest TEXT NOT NULL REFERENCES text) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event (
    seq INTEGER PRIMARY KEY, move TEXT NOT NULL REFERENCES text, outcome TEXT NOT NULL REFERENCES text,
    wall_s REAL NOT NULL, held TEXT NOT NULL, at_unix_s REAL NOT NULL);
CREATE TRIGGER IF NOT EXISTS event_kept BEFORE DELETE ON event
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER IF NOT EXISTS event_fixed BEFORE UPDATE ON event
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
"""


class Store:
    """Texts under their digests, and tables that refer to them, in the file at `path`. Opening it takes the run's lock
    (a file beside it) for writing; `readonly` takes none.

    Raises UserError if the file is missing (readonly), no journal, of another format, or in use by another process."""

    def __init__(self, path: Path, *, readonly: bool) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        if readonly and not path.is_file():
            raise UserError(
                f"{path.parent}: no run here (no {path.name}); start one with `tilewright optimize FILE --out DIR`"
            )
        if not readonly:
            self._lock = _locked(path)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.text_factory = lambda data: data.decode(errors="replace")
        try:
            self._check_format(readonly=readonly)
            there = os.stat(path)
            self._place = there.st_dev, there.st_ino
            if not readonly:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_SCHEMA)
        except UserError:
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            self.close()
            if getattr(error, "sqlite_errorname", "").startswith(_OF_THE_DISK):
                raise  # it may be full: the journal is none the worse
            raise UserError(f"{path}: cannot be read as a journal ({error}); choose another --out") from error

    def _check_format(self, *, readonly: bool) -> None:
        ((found,),) = self.rows("PRAGMA user_version")
        ((tables,),) = self.rows("SELECT count(*) FROM sqlite_master")
        if found == tables == 0 and not readonly:
            self._db.execute(f"PRAGMA user_version={FORMAT}")
        elif found == 0:
            raise UserError(f"{self.path}: is no journal of a run; choose another folder")
        elif found == _READ:
            if not readonly:
                self._db.execute(f"PRAGMA user_version={FORMAT}")
        elif found != FORMAT:
            raise UserError(
                f"{self.path}: journal format {found}, this version writes {FORMAT}; use the version that made it, or "
                "choose another folder"
            )

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """For writers, inside a transaction."""
        return self._db.execute(statement, values)

    def rows(self, query: str, *values: str) -> list[Any]:
        """What is there. Raises UserError where the file was damaged."""
        try:
            return self._db.execute(query, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter of what a message quotes
            if getattr(error, "sqlite_errorname", "").startswith(_OF_THE_DISK):
                raise
            raise self.damaged(str(error)) from error

    def fact(self, digest: str, text: object, kind: Any) -> Any:
        """From a text that is kept under this digest; "" where there is none."""
        try:
            if not isinstance(text, str) or (digest and digest != _digest(text)):
                raise ValueError("a text is not what was written")
            return codec.read(text, kind)
        except ValueError as error:
            raise self.damaged(str(error)) from error

    def damaged(self, why: str) -> UserError:
        """The error of a file that holds what no journal does."""
        return UserError(
            f"{self.path}: cannot be read as a journal: it was damaged, or made by another version ({why[:200]}); "
            "choose another folder"
        )

    def keep(self, body: str) -> str:
        """Keep a text; its digest."""
        digest = _digest(body)
        self._db.execute("INSERT OR IGNORE INTO text VALUES (?, ?)", (digest, body))
        return digest

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside is durable after it, or not there if something is raised. Raises OSError where the
        file that we write to is no longer the one at our path: it was removed, and what is written to it would be lost
        with us."""
        there = os.stat(self.path)
        if (there.st_dev, there.st_ino) != self._place:
            raise FileNotFoundError(errno.ENOENT, "another journal lies there", str(self.path))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.close()


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def make_folder(folder: Path) -> None:
    """What a user named to write to is there after the call; UserError where it can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> Exception:
    """A full disk is told of where it is met anywhere."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    return UserError(f"{folder}: can't be written ({(error.strerror or str(error)).lower()}); choose another --out")


def _locked(path: Path) -> IO[str]:
    make_folder(path.parent)
    try:
        lock = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UserError(
            f"{path.parent}: another process is working on this run; wait for it, or choose another --out"
        ) from error
    return lock
