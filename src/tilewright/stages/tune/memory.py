"""A memory of winning knob settings per machine and shape class: one SQLite file, shared by concurrent processes.

The memory only saves time, so nothing that happens to it may end a run: what can't be read counts as not remembered,
and what can't be written is told in a line. The last winner counts, not the fastest: times of different modules and
of older code do not compare.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ...facts.space import Point

T = TypeVar("T")

_TABLE = """
CREATE TABLE IF NOT EXISTS winners (
    machine TEXT NOT NULL,
    shape_class TEXT NOT NULL,
    point TEXT NOT NULL,  -- JSON list of [name, value]
    time_ns REAL NOT NULL,
    written_at TEXT NOT NULL DEFAULT (datetime('now')),
    PRIMARY KEY (machine, shape_class)
) WITHOUT ROWID
"""
_WAIT_S = 10.0  # for another process's write to end


def remember(path: Path, machine_key: str, shape_class: str, point: Point, time_ns: float) -> str:
    """Make this point the winner of its machine and shape class. Returns "" or, as one line to show, what was wrong:
    a damaged file was moved aside (the point is then in a new one), or the point could not be kept."""
    row = (machine_key, shape_class, json.dumps(point), time_ns)

    def write(memory: sqlite3.Connection) -> None:
        with memory:
            memory.execute(
                "INSERT OR REPLACE INTO winners (machine, shape_class, point, time_ns) VALUES (?, ?, ?, ?)", row
            )

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _with(path, write)
            return ""
        except sqlite3.OperationalError as error:  # busy, full or read-only: the file itself may be sound
            return f"the winner was not remembered: {path}: {error}"
        except sqlite3.DatabaseError as error:
            aside = _move_aside(path)
            _with(path, write)
            return (
                f"the memory of winners was damaged ({error}); it was moved to {aside} and starts anew" if aside else ""
            )
    except (OSError, sqlite3.Error) as error:
        return f"the winner was not remembered: {path}: {error}"


def recall(path: Path, machine_key: str, shape_class: str) -> Point | None:
    """The winner remembered for this machine and shape class; None where there is none, or none that can be read."""

    def read(memory: sqlite3.Connection) -> str | None:
        query = "SELECT point FROM winners WHERE machine = ? AND shape_class = ?"
        found = memory.execute(query, (machine_key, shape_class)).fetchone()
        return None if found is None else str(found[0])

    if not path.exists():
        return None
    try:
        text = _with(path, read)
        return None if text is None else tuple((str(name), value) for name, value in json.loads(text))
    except (OSError, sqlite3.Error, ValueError, TypeError):  # `remember` is the one that repairs, and says so
        return None


def _with(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    with closing(sqlite3.connect(path, timeout=_WAIT_S)) as memory:
        memory.execute("PRAGMA journal_mode = WAL")
        memory.execute("PRAGMA synchronous = NORMAL")  # a lost last winner costs a few seconds of tuning
        memory.execute(_TABLE)
        return work(memory)


def _move_aside(path: Path) -> Path | None:
    """Rename a damaged file (and drop its log); None where another process has done so already."""
    with _locked(path.with_name(path.name + ".lock")):
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path, timeout=_WAIT_S)) as memory:
            if memory.execute("PRAGMA quick_check").fetchone() == ("ok",):
                return None
        aside = path.with_name(f"{path.name}.damaged-{os.getpid()}")
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return aside


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
