"""One run's journal in SQLite: WAL, append-only, one writer; killing the process loses at most the move in flight."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ...facts import codec
from ...facts.errors import UserError
from ...facts.move import Event, Move, Outcome
from ...facts.outcome import Station
from ...facts.run import Brief, Request

FORMAT = 4
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


class Ledger:
    """The journal at `path`. Opening takes the run's lock (a file beside it) for writing; `readonly` takes none.

    Raises UserError if the file is missing (readonly), no journal, of another format, or in use by another process."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
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
        ((found,),) = self._rows("PRAGMA user_version")
        ((tables,),) = self._rows("SELECT count(*) FROM sqlite_master")
        if found == tables == 0 and not readonly:
            self._db.execute(f"PRAGMA user_version={FORMAT}")
        elif found == 0:
            raise UserError(f"{self.path}: is no journal of a run; choose another folder")
        elif found != FORMAT:
            raise UserError(
                f"{self.path}: journal format {found}, this version writes {FORMAT}; use the version that made it, or "
                "choose another folder"
            )

    def request(self) -> Request | None:
        """The run's first record, None before it was written."""
        request = self._record("request")
        assert request is None or isinstance(request, Request)
        return request

    def brief(self) -> Brief | None:
        """What the strategy may know, None before it was learnt."""
        brief = self._record("brief")
        assert brief is None or isinstance(brief, Brief)
        return brief

    def write(self, record: Request | Brief) -> None:
        """Keep the run's request or brief; each can be written once."""
        with self._transaction():
            digest = self._keep(codec.dumps(record))
            self._db.execute("INSERT INTO record VALUES (?, ?)", (type(record).__name__.lower(), digest))

    def begin_anew(self) -> None:
        """Forget the request of a run without outcomes; one with outcomes stays as it is."""
        with self._transaction():
            if not self.count():
                self._db.execute("DELETE FROM record")
                self._db.execute("DELETE FROM text")

    def _record(self, name: str) -> object:
        rows = self._rows("SELECT digest, body FROM record LEFT JOIN text USING (digest) WHERE name = ?", name)
        kind: Any = {"request": Request, "brief": Brief}[name]
        return self._fact(rows[0][0], rows[0][1], kind) if rows else None

    def events(self) -> tuple[Event, ...]:
        """All of them, in order. UserError where the file holds anything else: it was damaged."""
        rows = self._rows(
            "SELECT seq, move, m.body, outcome, o.body, wall_s, held FROM event"
            " LEFT JOIN text m ON m.digest = move LEFT JOIN text o ON o.digest = outcome ORDER BY seq"
        )
        found = tuple(
            Event(seq=seq, move=self._fact(move, made, Move), outcome=self._fact(outcome, came, Outcome), wall_s=wall,
                  held=self._fact("", held, tuple[Station, ...]))
            for seq, move, made, outcome, came, wall, held in rows
        )  # fmt: skip
        if [e.seq for e in found] != list(range(len(found))) or not all(codec.fits(e.wall_s, float) for e in found):
            raise self._damaged("its events don't follow one another")
        return found

    def _rows(self, query: str, *values: str) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter of what a message quotes
            if getattr(error, "sqlite_errorname", "").startswith(_OF_THE_DISK):
                raise
            raise self._damaged(str(error)) from error

    def _fact(self, digest: str, text: object, kind: Any) -> Any:
        """From a text that is kept under this digest; "" where there is none."""
        try:
            if not isinstance(text, str) or (digest and digest != _digest(text)):
                raise ValueError("a text is not what was written")
            return codec.read(text, kind)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> UserError:
        return UserError(
            f"{self.path}: cannot be read as a journal: it was damaged, or made by another version ({why[:200]}); "
            "choose another folder"
        )

    def count(self) -> int:
        """How many outcomes it holds: the brief and the events."""
        ((found,),) = self._rows(
            "SELECT (SELECT count(*) FROM record WHERE name = 'brief') + (SELECT count(*) FROM event)"
        )
        return int(found)

    def append(self, move: Move, outcome: Outcome, *, wall_s: float, held: tuple[Station, ...] = ()) -> Event:
        """Make the event durable before it is returned; what comes back equals what a replay will read."""
        with self._transaction():
            (seq,) = self._db.execute("SELECT coalesce(max(seq) + 1, 0) FROM event").fetchone()
            texts = codec.dumps(move), codec.dumps(outcome)
            self._db.execute(
                "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)",
                (seq, self._keep(texts[0]), self._keep(texts[1]), wall_s, codec.dumps(held), time.time()),
            )
        return Event(seq=seq, move=codec.loads(texts[0]), outcome=codec.loads(texts[1]), wall_s=wall_s, held=held)

    def _keep(self, body: str) -> str:
        digest = _digest(body)
        self._db.execute("INSERT OR IGNORE INTO text VALUES (?, ?)", (digest, body))
        return digest

    def _transaction(self) -> _Transaction:
        """Raises OSError where the file that we write to is no longer the one at our path: it was removed, and what
        is written to it would be lost with us."""
        there = os.stat(self.path)
        if (there.st_dev, there.st_ino) != self._place:
            raise FileNotFoundError(errno.ENOENT, "another journal lies there", str(self.path))
        return _Transaction(self._db)

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:
            self._db.execute("ROLLBACK")


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
