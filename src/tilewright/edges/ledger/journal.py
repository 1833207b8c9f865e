"""One run's journal: append-only, one writer; killing the process loses at most the move in flight."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...facts import codec
from ...facts.move import Event, Move, Outcome
from ...facts.outcome import Station
from ...facts.run import Request, SearchContext
from .store import Store

_RECORDS = {"request": Request, "brief": SearchContext}  # by the names that they have in the file


class Ledger:
    """The journal at `path`: the run's request and brief, and its events.

    Raises UserError if the file is missing (readonly), no journal, of another format, or in use by another process."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._store = Store(path, readonly=readonly)

    def request(self) -> Request | None:
        """The run's first record, None before it was written."""
        request = self._record("request")
        assert request is None or isinstance(request, Request)
        return request

    def context(self) -> SearchContext | None:
        """What the strategy may know, None before it was learnt."""
        context = self._record("brief")
        assert context is None or isinstance(context, SearchContext)
        return context

    def write(self, record: Request | SearchContext) -> None:
        """Keep the run's request or brief; each can be written once."""
        with self._store.transaction():
            digest = self._store.keep(codec.dumps(record))
            self._store.execute(
                "INSERT INTO record VALUES (?, ?)",
                (next(n for n, kind in _RECORDS.items() if type(record) is kind), digest),
            )

    def begin_anew(self) -> None:
        """Forget the request of a run without outcomes; one with outcomes stays as it is."""
        with self._store.transaction():
            if not self.count():
                self._store.execute("DELETE FROM record")
                self._store.execute("DELETE FROM text")

    def _record(self, name: str) -> object:
        rows = self._store.rows("SELECT digest, body FROM record LEFT JOIN text USING (digest) WHERE name = ?", name)
        kind: Any = _RECORDS[name]
        return self._store.fact(rows[0][0], rows[0][1], kind) if rows else None

    def events(self) -> tuple[Event, ...]:
        """All of them, in order. UserError where the file holds anything else: it was damaged."""
        rows = self._store.rows(
            "SELECT seq, move, m.body, outcome, o.body, wall_s, held FROM event"
            " LEFT JOIN text m ON m.digest = move LEFT JOIN text o ON o.digest = outcome ORDER BY seq"
        )
        fact = self._store.fact
        found = tuple(
            Event(seq=seq, move=fact(move, made, Move), outcome=fact(outcome, came, Outcome), wall_s=wall,
                  held=fact("", held, tuple[Station, ...]))
            for seq, move, made, outcome, came, wall, held in rows
        )  # fmt: skip
        if [e.seq for e in found] != list(range(len(found))) or not all(codec.fits(e.wall_s, float) for e in found):
            raise self._store.damaged("its events don't follow one another")
        return found

    def count(self) -> int:
        """How many outcomes it holds: the context and the events."""
        ((found,),) = self._store.rows(
            "SELECT (SELECT count(*) FROM record WHERE name = 'brief') + (SELECT count(*) FROM event)"
        )
        return int(found)

    def append(self, move: Move, outcome: Outcome, *, wall_s: float, held: tuple[Station, ...] = ()) -> Event:
        """Make the event durable before it is returned; what comes back equals what a replay will read."""
        with self._store.transaction():
            (seq,) = self._store.execute("SELECT coalesce(max(seq) + 1, 0) FROM event").fetchone()
            texts = codec.dumps(move), codec.dumps(outcome)
            self._store.execute(
                "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)",
                (seq, self._store.keep(texts[0]), self._store.keep(texts[1]), wall_s, codec.dumps(held), time.time()),
            )
        return Event(seq=seq, move=codec.loads(texts[0]), outcome=codec.loads(texts[1]), wall_s=wall_s, held=held)

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
