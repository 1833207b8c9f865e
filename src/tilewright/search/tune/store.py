"""The file of winners: one SQLite table, its schema's format, and how a Winner becomes a row and comes back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ...facts import codec
from ...facts.outcome import PointTime
from ...facts.winner import Toolchain, Winner

FORMAT = 2  # PRAGMA user_version; the first format (0) held no evidence and named no toolchain
WAIT_S = 10.0  # for another process's write to end

_TABLE = """
CREATE TABLE IF NOT EXISTS winners (
    target TEXT NOT NULL,
    device TEXT NOT NULL,
    driver TEXT NOT NULL,
    torch TEXT NOT NULL,
    dsl TEXT NOT NULL,
    tilewright TEXT NOT NULL,
    shape_class TEXT NOT NULL,
    title TEXT NOT NULL,
    point TEXT NOT NULL,  -- JSON: [[name, value], ...]
    tried TEXT NOT NULL,  -- JSON: the points measured in turn, ns per call of the whole module, the winner among them
    floor_share REAL NOT NULL,
    found_at TEXT NOT NULL,  -- UTC, ISO 8601
    PRIMARY KEY (target, device, driver, torch, dsl, tilewright, shape_class)
) WITHOUT ROWID
"""
_NAMES = (
    "target", "device", "driver", "torch", "dsl", "tilewright", "shape_class", "title", "point", "tried",
    "floor_share", "found_at",
)  # fmt: skip
COLUMNS = ", ".join(_NAMES)
PUT = f"INSERT OR REPLACE INTO winners ({COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))})"


class OtherFormat(Exception):
    """The file's format is not the one that this version reads and writes."""

    def __init__(self, found: int) -> None:
        super().__init__(f"it is of format {found}, this version's is {FORMAT}")
        self.found = found


@contextmanager
def opened(path: Path, *, create: bool = False, immutable: bool = False) -> Iterator[sqlite3.Connection]:
    """The file at `path`, with its table where `create`. `immutable`: nobody writes it, and it may lie where nothing
    can be written. Raises sqlite3.Error, and OtherFormat where the format is not ours."""
    mode = "immutable=1" if immutable else "mode=rwc" if create else "mode=rw"
    uri = f"{path.absolute().as_uri()}?{mode}"
    with closing(sqlite3.connect(uri, uri=True, timeout=WAIT_S)) as file:
        if create and is_new(file):
            file.execute("PRAGMA journal_mode = WAL")
            with file:
                file.execute("BEGIN IMMEDIATE")  # nobody may see the table without its format
                file.execute(_TABLE)
                file.execute(f"PRAGMA user_version = {FORMAT}")
        (found,) = file.execute("PRAGMA user_version").fetchone()
        if found != FORMAT:
            raise OtherFormat(found)
        file.execute("PRAGMA synchronous = NORMAL")  # a lost last winner costs a few seconds of tuning
        yield file


def is_new(file: sqlite3.Connection) -> bool:
    """Whether nothing was ever made in it."""
    (found,) = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return not found


def to_row(winner: Winner) -> tuple[str | float, ...]:
    """In the order of COLUMNS."""
    chain = winner.toolchain
    return (
        winner.target, winner.device, chain.driver, chain.torch, chain.dsl, chain.tilewright, winner.shape_class,
        winner.title, json.dumps(winner.point), codec.dumps(winner.tried), winner.floor_share, winner.found_at,
    )  # fmt: skip


def from_row(row: Sequence[Any]) -> Winner:
    """The inverse of `to_row`. Raises ValueError where the row is not a winner with its evidence."""
    named = dict(zip(_NAMES, row, strict=True))
    try:
        point = codec.loads(named["point"])
        tried = codec.loads(named["tried"])
        winner = Winner(
            target=named["target"], device=named["device"], shape_class=named["shape_class"], title=named["title"],
            toolchain=Toolchain(
                driver=named["driver"], torch=named["torch"], dsl=named["dsl"], tilewright=named["tilewright"]
            ),
            point=point, tried=tried, floor_share=float(named["floor_share"]), found_at=named["found_at"],
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise ValueError(f"class {named['shape_class']!r}: not a winner: {error!r}") from error
    if not all(isinstance(name, str) and isinstance(value, int | str) for name, value in point):
        raise ValueError(f"class {named['shape_class']!r}: {named['point']} is not a point")
    if not isinstance(tried, tuple) or not all(isinstance(t, PointTime) for t in tried):
        raise ValueError(f"class {named['shape_class']!r}: the evidence is no list of points with their times")
    winner.time_ns  # noqa: B018  raises where the evidence does not hold it
    return winner
