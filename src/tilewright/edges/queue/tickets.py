"""The table of tickets: who submitted what, how far it is, and what came of it. A ticket that was handed out is kept
whatever happens to the server; one that a judge has begun is begun at most once more."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...facts import codec
from ...facts.errors import HarnessError
from ...facts.ticket import ENDED, Submission, Taken, Ticket, TicketFault, TicketVerdict
from .database import Database, Statements

MOST_ATTEMPTS = 2
_TWICE = TicketFault(whose="project", text="its judge was ended twice while it worked on this; submit it again")
_COLUMNS = "id, owner, priority, state, attempts, submitted_s, taken_s, ended_s, outcome"
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS ticket (
        seq {number}, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, digest TEXT NOT NULL, about TEXT NOT NULL,
        priority INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL, server TEXT NOT NULL,
        lease_s DOUBLE PRECISION NOT NULL, submitted_s DOUBLE PRECISION NOT NULL, taken_s DOUBLE PRECISION NOT NULL,
        ended_s DOUBLE PRECISION NOT NULL, submission TEXT NOT NULL, outcome TEXT NOT NULL, UNIQUE (owner, digest))""",
    "CREATE INDEX IF NOT EXISTS ticket_by_state ON ticket (state, priority, seq)",
    "CREATE INDEX IF NOT EXISTS ticket_by_owner ON ticket (owner, taken_s)",
)
# The highest priority first; of equal ones those whose judge is open, then whoever was served longest ago.
_NEXT = """SELECT id, attempts, submission FROM ticket AS t WHERE state = 'queued'
    ORDER BY priority DESC, CASE WHEN about = ? THEN 0 ELSE 1 END,
        (SELECT coalesce(max(taken_s), 0) FROM ticket AS o WHERE o.owner = t.owner), seq LIMIT 1"""


class QueueFull(Exception):
    """Its owner has as many tickets waiting as are allowed."""


class TicketQueue:
    """See the module's docstring. All methods may be called from any thread, and raise QueueDown.

    `server` names whoever takes tickets; what it takes is its own for `lease_s` from its last `keep`."""

    def __init__(
        self, url: str, *, server: str, lease_s: float = 30.0, clock: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        self._database, self._server, self._lease_s, self._clock = Database(url), server, lease_s, clock
        number = "INTEGER PRIMARY KEY AUTOINCREMENT" if self._database.sqlite else "BIGSERIAL PRIMARY KEY"
        with self._database.transaction() as run:
            for statement in _SCHEMA:
                run(statement.format(number=number))

    # ---- for those who submit

    def submit(self, submission: Submission, *, owner: str, priority: int, most_queued: int) -> tuple[Ticket, bool]:
        """The ticket, and whether it came to wait just now. Equal content of the same owner has the same ticket; where
        that was cancelled, or ended by a fault, it waits once more. Raises QueueFull."""
        now, digest = self._clock(), submission.digest
        with self._database.transaction() as run:
            known = run(f"SELECT {_COLUMNS} FROM ticket WHERE owner = ? AND digest = ?", owner, digest)
            if known and _ticket(known[0]).state not in ("faulted", "cancelled"):
                return _ticket(known[0]), False
            ((waiting,),) = run("SELECT count(*) FROM ticket WHERE owner = ? AND state = 'queued'", owner)
            if waiting >= most_queued:
                raise QueueFull
            if known:
                run(
                    "UPDATE ticket SET state = 'queued', attempts = 0, priority = ?, submitted_s = ?, taken_s = 0,"
                    " ended_s = 0, outcome = '' WHERE id = ?", priority, now, known[0][0],
                )  # fmt: skip
            else:
                run(
                    "INSERT INTO ticket (id, owner, digest, about, priority, state, attempts, server, lease_s,"
                    " submitted_s, taken_s, ended_s, submission, outcome)"
                    " VALUES (?, ?, ?, ?, ?, 'queued', 0, '', 0, ?, 0, 0, ?, '')",
                    secrets.token_hex(16), owner, digest, submission.about, priority, now, codec.dumps(submission),
                )  # fmt: skip
            (row,) = run(f"SELECT {_COLUMNS} FROM ticket WHERE owner = ? AND digest = ?", owner, digest)
            return _ticket(row), True

    def tickets(self, ids: Sequence[str], *, owner: str) -> tuple[Ticket, ...]:
        """Those of these that are there and are the owner's, in the order that was asked for."""
        places = ", ".join("?" * len(ids))
        with self._database.reading() as run:
            rows = (
                run(f"SELECT {_COLUMNS} FROM ticket WHERE owner = ? AND id IN ({places})", owner, *ids) if ids else []
            )
        found = {ticket.id: ticket for ticket in map(_ticket, rows)}
        return tuple(found[i] for i in dict.fromkeys(ids) if i in found)

    def cancel(self, ticket: str, *, owner: str) -> Ticket | None:
        """The ticket afterwards; None where there is none of the owner's. One that has ended stays as it is."""
        with self._database.transaction() as run:
            run(
                "UPDATE ticket SET state = 'cancelled', ended_s = ? WHERE id = ? AND owner = ?"
                " AND state IN ('queued', 'judging')", self._clock(), ticket, owner,
            )  # fmt: skip
            rows = run(f"SELECT {_COLUMNS} FROM ticket WHERE id = ? AND owner = ?", ticket, owner)
        return _ticket(rows[0]) if rows else None

    def counts(self) -> tuple[tuple[str, int], ...]:
        """How many tickets are in each state."""
        with self._database.reading() as run:
            return tuple((str(state), int(n)) for state, n in run("SELECT state, count(*) FROM ticket GROUP BY state"))

    # ---- for those who judge

    def take(self, prefers: str = "") -> Taken | None:
        """The next ticket, if one waits: among equals one about the problem that `prefers` names (Submission.about)."""
        now = self._clock()
        with self._database.transaction() as run:
            for ticket, attempts, text in run(_NEXT, prefers):
                try:
                    submission = _read(text, Submission)
                except HarnessError as error:  # another version's: the others must not wait behind it
                    fault = codec.dumps(TicketFault(whose="project", text=f"{error}; submit it again"))
                    run(
                        "UPDATE ticket SET state = 'faulted', ended_s = ?, outcome = ? WHERE id = ?", now, fault, ticket
                    )
                    return None
                run(
                    "UPDATE ticket SET state = 'judging', attempts = ?, server = ?, lease_s = ?, taken_s = ?"
                    " WHERE id = ?", attempts + 1, self._server, now + self._lease_s, now, ticket,
                )  # fmt: skip
                return Taken(id=ticket, attempts=attempts + 1, submission=submission)
        return None

    def keep(self, tickets: Collection[str]) -> frozenset[str]:
        """Of these tickets, which this server works on, those that are still its own; their leases are prolonged in
        time. Others of its own are nobody's when their lease is over."""
        places = ", ".join("?" * len(tickets))
        mine = f"state = 'judging' AND server = ? AND id IN ({places})"
        if not tickets:
            return frozenset()
        with self._database.reading() as run:
            rows = run(f"SELECT id, lease_s FROM ticket WHERE {mine}", self._server, *tickets)
        now = self._clock()
        if any(lease_s < now + self._lease_s * 2 / 3 for _, lease_s in rows):
            with self._database.transaction() as run:
                run(f"UPDATE ticket SET lease_s = ? WHERE {mine}", now + self._lease_s, self._server, *tickets)
        return frozenset(str(ticket) for ticket, _ in rows)

    def end(self, ticket: str, outcome: TicketVerdict | TicketFault) -> bool:
        """Keep what came of a ticket; False where it is this server's no more, and nothing was kept."""
        state = "judged" if isinstance(outcome, TicketVerdict) else "faulted"
        with self._database.transaction() as run:
            return bool(run(
                "UPDATE ticket SET state = ?, ended_s = ?, outcome = ? WHERE id = ? AND server = ?"
                " AND state = 'judging' RETURNING id", state, self._clock(), codec.dumps(outcome), ticket, self._server,
            ))  # fmt: skip

    def give_back(self, ticket: str, *, begun: bool) -> None:
        """Have a ticket wait once more. `begun`: its judge ended while it worked on it, which counts as an attempt."""
        with self._database.transaction() as run:
            if not begun:
                run("UPDATE ticket SET attempts = attempts - 1 WHERE id = ? AND server = ?", ticket, self._server)
            _again(run, self._clock(), "id = ? AND server = ?", ticket, self._server)

    def recover(self, *, started: bool = False) -> None:
        """Have tickets wait once more whose server is gone: whose lease is over; `started`: and all of this server's,
        which has just begun to work."""
        now = self._clock()
        with self._database.reading() as run:
            ((late,),) = run("SELECT count(*) FROM ticket WHERE state = 'judging' AND lease_s < ?", now)
        if not late and not started:
            return
        with self._database.transaction() as run:
            _again(run, now, "lease_s < ?", now)
            if started:
                _again(run, self._clock(), "server = ?", self._server)

    def prune(self, *, older_s: float) -> None:
        """Forget what ended so long ago."""
        ended = ", ".join(f"'{state}'" for state in ENDED)
        with self._database.transaction() as run:
            run(f"DELETE FROM ticket WHERE state IN ({ended}) AND ended_s < ?", self._clock() - older_s)

    def close(self) -> None:
        self._database.close()


def _again(run: Statements, now: float, which: str, *values: object) -> None:
    """Have tickets that were begun wait once more; those that were begun as often as they may be end by a fault."""
    run(
        f"UPDATE ticket SET state = 'faulted', ended_s = ?, outcome = ? WHERE state = 'judging' AND {which}"
        f" AND attempts >= {MOST_ATTEMPTS}", now, codec.dumps(_TWICE), *values,
    )  # fmt: skip
    run(f"UPDATE ticket SET state = 'queued', server = '' WHERE state = 'judging' AND {which}", *values)


def _ticket(row: tuple[Any, ...]) -> Ticket:
    ticket, owner, priority, state, attempts, submitted_s, taken_s, ended_s, outcome = row
    return Ticket(
        id=ticket, owner=owner, priority=priority, state=state, attempts=attempts, submitted_s=submitted_s,
        taken_s=taken_s, ended_s=ended_s, outcome=_read(outcome, TicketVerdict | TicketFault) if outcome else None,  # type: ignore[arg-type]
    )  # fmt: skip


def _read(text: str, kind: type[Any]) -> Any:
    try:
        return codec.read(text, kind)
    except ValueError as error:
        raise HarnessError(f"the queue holds a record that this version can't read: {error}") from None
