"""Clients of the load: they remember what they were promised, and how long each answer took."""

from __future__ import annotations

import http.client
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tilewright.client import JudgeClient, JudgeRefused, JudgeUnreachable, ServedTicket, Submitted

from .candidates import TIMES, id_of, right, wrong

T = TypeVar("T")
PROBLEM = "cosines"
_AGAIN = 5  # that a ticket is submitted where the machine was at fault
_PAUSE_S = 0.5


@dataclass(kw_only=True)
class Tally:
    """What all clients saw. `times_s`: of each request that was answered and did not wait on purpose, by kind."""

    url: str
    ends_s: float  # of the monotonic clock: nobody waits longer
    lock: threading.Lock = field(default_factory=threading.Lock)
    times_s: dict[str, list[float]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    away: int = 0  # requests that met no server
    submissions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)  # what must not have come
    tickets: dict[str, str] = field(default_factory=dict)  # every one that was promised, with its owner
    begun_twice: set[str] = field(default_factory=set)

    def timed(self, kind: str, act: Callable[[], T]) -> T:
        """What comes of a request, again and again while the server is away."""
        while True:
            started = time.perf_counter()
            try:
                found = act()
            except JudgeRefused:
                self._took(kind, time.perf_counter() - started)
                raise
            except (JudgeUnreachable, OSError, http.client.HTTPException):
                with self.lock:
                    self.away += 1
                if time.monotonic() > self.ends_s:
                    raise
                time.sleep(_PAUSE_S)
            else:
                self._took(kind, time.perf_counter() - started)
                return found

    def _took(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.times_s.setdefault(kind, []).append(seconds)

    def wrong(self, text: str) -> None:
        with self.lock:
            self.wrongs.append(text)

    def expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.wrong(text)

    def ended(self, what: str, ticket: ServedTicket) -> None:
        with self.lock:
            self.outcomes[what] += 1
            if ticket.told["attempts"] > 1:
                self.begun_twice.add(ticket.id)

    def promised(self, ticket: ServedTicket, owner: str) -> None:
        with self.lock:
            self.submissions += 1
            mine = self.tickets.setdefault(ticket.id, owner) == owner
        self.expect(mine, f"{owner} was given the ticket of another, {ticket.id}")


def judged(tally: Tally, client: JudgeClient, owner: str, text: str) -> ServedTicket | None:
    """The ticket of a candidate when it is judged. A ticket that the machine was at fault for is submitted again."""
    wanted = Submitted(problem=PROBLEM, files={"model.py": text})
    for _ in range(_AGAIN):
        ticket = tally.timed("submit", lambda: client.submit(wanted))
        tally.promised(ticket, owner)
        while not ticket.ended and time.monotonic() < tally.ends_s:
            time.sleep(_PAUSE_S)
            ticket = tally.timed("ticket", lambda: client.ticket(ticket.id))  # noqa: B023
        if ticket.state == "judged":
            named = ticket.told["candidate_id"] == id_of(text)
            tally.expect(named, f"{owner} got the verdict on {ticket.told['candidate_id']} for {id_of(text)}")
            return ticket
        with tally.lock:
            tally.faults[str(ticket.told.get("fault", {}).get("text", ticket.state))[:80]] += 1
    tally.wrong(f"{owner}: {ticket.id} was never judged, but {ticket.state}: {ticket.told}")
    return None


def honest(tally: Tally, name: str, token: str, number: int) -> None:
    """Ten submissions: one right, three wrong ones that tell whose they are, and each again."""
    client = JudgeClient(tally.url, token=token, patience_s=0.0)
    factors = [TIMES + 1 + number + k / 8 for k in range(3)]
    texts = [wrong(f"{name} {k}", factor) for k, factor in enumerate(factors)] + [right(name)]
    for round_ in range(3):
        for k, text in enumerate(texts if round_ < 2 else texts[:2]):
            ticket = judged(tally, client, name, text)
            if ticket is None:
                continue
            if k == 3:
                tally.ended("accepted" if ticket.accepted else "a right one refused", ticket)
                tally.expect(ticket.accepted is True, f"{name}: a right one was refused: {ticket.told['verdict']}")
            else:
                told = ticket.told["verdict"]
                tally.ended(f"refused, {told['reason']}", ticket)
                tally.expect(
                    ticket.accepted is False and _shows(told["summary"], factors[k] / TIMES) and ticket.reward == 0.0,
                    f"{name}: not the verdict on a factor of {factors[k]}: {told}",
                )  # fmt: skip


def _shows(summary: str, factor: float) -> bool:
    found = re.search(r"it gives (\S+), the truth is ([^;]+?)(;|$)", summary)
    return found is not None and math.isclose(float(found[1]) / float(found[2]), factor, rel_tol=1e-3)


def raw(
    tally: Tally, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and body of a request as it is."""
    place = urlsplit(tally.url)

    def asked() -> tuple[int, dict[str, Any]]:
        with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)) as connection:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {}

    return tally.timed("hostile", asked)


def refused(tally: Tally, found: tuple[int, dict[str, Any]], *, reasons: tuple[str, ...]) -> None:
    status, told = found
    reason = str(told.get("error"))
    with tally.lock:
        tally.submissions += 1
        tally.refusals[reason] += 1
    tally.expect(status >= 400 and reason in reasons, f"expected {reasons}: {status} {told}")
