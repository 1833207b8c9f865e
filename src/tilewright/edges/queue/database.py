"""A database that several threads share, SQLite or PostgreSQL: statements with `?`, in transactions one at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from ...facts.errors import HarnessError, UserError

Rows = list[tuple[Any, ...]]
_LOCK = 8_126_700_133  # of PostgreSQL's advisory locks, the one of this table
_WAIT_S = 30.0
_SCHEMES = ("postgresql://", "postgres://")


class QueueDown(HarnessError):
    """The database of the queue can't be used now; the message says why."""


class Statements(Protocol):
    """Runs one statement within a transaction; the rows that it returns."""

    def __call__(self, statement: str, *values: object) -> Rows: ...


class _Engine(Protocol):
    def begin(self) -> None: ...

    def run(self, statement: str, values: tuple[object, ...]) -> Rows: ...

    def end(self, *, kept: bool) -> None: ...

    def close(self) -> None: ...


class Database:
    """Opened at its first use, and again after it failed. `url`: `postgresql://...`, or the path of a file."""

    def __init__(self, url: str) -> None:
        self.sqlite = not url.startswith(_SCHEMES)
        if not self.sqlite:
            _psycopg()  # a missing package is said at once
        self._writing, self._reading = (_Line(url, writes=writes, sqlite=self.sqlite) for writes in (True, False))

    def transaction(self) -> AbstractContextManager[Statements]:
        """A block whose statements count together or not at all; nobody else's come between. Raises QueueDown."""
        return self._writing.transaction()

    def reading(self) -> AbstractContextManager[Statements]:
        """A block that changes nothing, and waits for nobody who does. Raises QueueDown."""
        return self._reading.transaction()

    def close(self) -> None:
        self._writing.close()
        self._reading.close()


class _Line:
    """One connection, and a lock for it."""

    def __init__(self, url: str, *, writes: bool, sqlite: bool) -> None:
        self._open: Callable[[], _Engine] = lambda: (
            _Sqlite(Path(url), writes=writes) if sqlite else _Postgres(url, writes=writes)
        )
        self._lock = threading.Lock()
        self._engine: _Engine | None = None

    @contextmanager
    def transaction(self) -> Iterator[Statements]:
        with self._lock:
            try:
                self._engine = engine = self._engine or self._open()
                engine.begin()
                try:
                    yield lambda statement, *values: engine.run(statement, values)
                except BaseException:
                    with suppress(*_failures()):
                        engine.end(kept=False)
                    raise
                engine.end(kept=True)
            except _failures() as error:
                self._drop()
                raise QueueDown(f"the queue can't be used: {' '.join(str(error).split())[:300]}") from error

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            with suppress(*_failures()):
                engine.close()


class _Sqlite:
    """A file in WAL mode. A transaction that was told as kept is on the disk."""

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        path.touch(mode=0o600)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=_WAIT_S, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")

    def begin(self) -> None:
        self._db.execute(self._begin)

    def run(self, statement: str, values: tuple[object, ...]) -> Rows:
        return self._db.execute(statement, values).fetchall()

    def end(self, *, kept: bool) -> None:
        self._db.execute("COMMIT" if kept else "ROLLBACK")

    def close(self) -> None:
        self._db.close()


class _Postgres:
    """A connection; transactions that write wait for one another, whoever makes them."""

    def __init__(self, url: str, *, writes: bool) -> None:
        self._writes = writes
        self._db = _psycopg().connect(url, connect_timeout=int(_WAIT_S), application_name="tilewright")

    def begin(self) -> None:
        if self._writes:
            self._db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))

    def run(self, statement: str, values: tuple[object, ...]) -> Rows:
        done = self._db.execute(statement.replace("?", "%s"), values)
        return done.fetchall() if done.description else []

    def end(self, *, kept: bool) -> None:
        self._db.commit() if kept else self._db.rollback()

    def close(self) -> None:
        self._db.close()


def _failures() -> tuple[type[BaseException], ...]:
    """What the databases raise where they can't be used."""
    found: tuple[type[BaseException], ...] = (sqlite3.Error, OSError)
    with suppress(UserError):
        return (*found, _psycopg().Error)
    return found


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise UserError(
            f"--queue postgresql://... needs psycopg ({error}): pip install 'tilewright[postgres]'"
        ) from None
    return psycopg
