"""The memory of winners: what a tuner found is kept with its evidence, and found again; one file, many processes.

The memory only saves time, so nothing that happens to it may end a run: what can't be read counts as not remembered,
and what can't be written is told in a line. The last winner counts, not the fastest: times of different modules and
of older code do not compare.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ...facts.devices import alike, device_of
from ...facts.machine import Machine
from ...facts.winner import Toolchain, Winner
from .store import COLUMNS, FORMAT, PUT, WAIT_S, OtherFormat, from_row, is_new, opened, to_row

FILE = "winners.db"  # the user's own, in the cache
# What comes with the package, where something does: measured like any other, and read after the user's own.
SHIPPED = Path(__file__).with_name("shipped.db")


def remember(path: Path, winner: Winner) -> str:
    """Keep the winner of its device, toolchain and shape class. Returns "" or, as one line to show, what was wrong: a
    file that is damaged or of an older format was moved aside (the winner is then in a new one), or the winner could
    not be kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _put(path, winner)
            return ""
        except OtherFormat as other:
            if other.found > FORMAT:
                return f"the winner was not remembered: {path}: {other}; a newer version wrote it"
            return _anew(path, winner, f"was written by an older version ({other})")
        except sqlite3.OperationalError as error:  # busy, full or read-only: the file itself may be sound
            return f"the winner was not remembered: {path}: {error}"
        except sqlite3.DatabaseError as error:
            return _anew(path, winner, f"was damaged ({error})")
    except (OSError, sqlite3.Error, OtherFormat) as error:
        return f"the winner was not remembered: {path}: {error}"


def recall(
    path: Path, machine: Machine, toolchain: Toolchain, shape_class: str, *, shipped: Path = SHIPPED
) -> Winner | None:
    """The winner for this machine and shape class: one with this very toolchain, from the user's file at `path` or else
    from the shipped one; else the newest with another toolchain, looked for in the same order; else the same of
    another device of this architecture, which is the likeliest to win here, and no more (`Winner.device` says so).
    None where there is none, or none that can be read."""
    for device in (machine.device, *alike(device_of(machine))):
        mine = _on_device(path, machine.target, device, shape_class)
        known = (*mine, *_on_device(shipped, machine.target, device, shape_class, immutable=True))
        if known:
            return next((w for w in known if w.toolchain == toolchain), known[0])
    return None


def _on_device(
    path: Path, target: str, device: str, shape_class: str, *, immutable: bool = False
) -> tuple[Winner, ...]:
    """The newest first."""
    query = (
        f"SELECT {COLUMNS} FROM winners WHERE target = ? AND device = ? AND shape_class = ?"
        " ORDER BY found_at DESC, driver, torch, dsl, tilewright"
    )
    if not path.is_file():
        return ()
    try:
        with opened(path, immutable=immutable) as file:
            rows = file.execute(query, (target, device, shape_class)).fetchall()
    except (OSError, sqlite3.Error, OtherFormat):  # `remember` is the one that repairs, and says so
        return ()
    winners = []
    for row in rows:
        with suppress(ValueError):
            winners.append(from_row(row))
    return tuple(winners)


def _put(path: Path, winner: Winner) -> None:
    with opened(path, create=True) as file, file:
        file.execute(PUT, to_row(winner))


def _anew(path: Path, winner: Winner, why: str) -> str:
    aside = _move_aside(path)
    _put(path, winner)
    return f"the memory of winners {why}; it was moved to {aside} and starts anew" if aside else ""


def _move_aside(path: Path) -> Path | None:
    """Rename a file that can't be used (and drop its log); None where another process has done so already."""
    with _locked(path.with_name(path.name + ".lock")):
        kind = "damaged"
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path, timeout=WAIT_S)) as file:
            if file.execute("PRAGMA quick_check").fetchone() == ("ok",):
                (found,) = file.execute("PRAGMA user_version").fetchone()
                if found == FORMAT or is_new(file):
                    return None
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log stays behind
                kind = f"format-{found}"
        aside = path.with_name(f"{path.name}.{kind}-{os.getpid()}")
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return aside


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
