"""The routes: what a client may ask of the served judge."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ...edges.queue import QueueDown, QueueFull, TicketQueue
from ...facts.errors import HarnessError
from ...facts.ticket import ENDED, Ticket
from ...facts.version import VERSION
from ...report import RewardRule
from ...report.site import LiveSite
from . import openapi
from .answers import ticket_object
from .bodies import MOST_BATCH, PostedBatch, PostedSubmission, RewardOptions, fitting, posted, submission_of
from .counts import Counts
from .gate import Refusal, SubmissionRates
from .keys import KeyHolder
from .pages import page_routes
from .pool import ProgressBoard
from .roots import ProblemRoots

_ID = re.compile(r"[0-9a-f]{32}")
_POLL_S = 0.2
_MOST_WAIT_S = 60.0
_MOST_STREAMS = 32  # that one holder may have open, and waiting requests
_BEAT_S = 15.0  # so often a stream says that it lives
_PAGE = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "x-frame-options": "DENY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What the routes work with. `posted_problems`: whether clients may send the text of a problem; `site`: the runs
    that are shown in a browser, if any are."""

    queue: TicketQueue
    board: ProgressBoard
    roots: ProblemRoots
    counts: Counts
    posted_problems: bool
    judges: int
    site: LiveSite | None = None
    rates: SubmissionRates = field(default_factory=SubmissionRates)
    waiting: Counter[str] = field(default_factory=Counter)  # by holder, in the loop's thread alone


def application(desk: Desk) -> Starlette:
    """The ASGI application; it relies on the gate before it."""
    tickets, server = _AboutTickets(desk), _AboutServer(desk)

    async def refused(request: Request, error: Exception) -> Response:
        refusal = _refusal_of(error)
        desk.counts.refusal(refusal.reason)
        return Response(refusal.line, status_code=refusal.status, headers=refusal.headers)

    kinds = (Refusal, HTTPException, HarnessError, Exception)
    acts = [(r, getattr(tickets, r.act, None) or getattr(server, r.act)) for r in openapi.ROUTES]
    made = [Route(route.path, act, methods=[route.method]) for route, act in acts]
    made += page_routes(desk.site) if desk.site else []
    return Starlette(routes=made, exception_handlers=dict.fromkeys(kinds, refused))


def _refusal_of(error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case HTTPException(status_code=status):
            reason = {404: "not_found", 405: "wrong_method"}.get(status, "malformed")
            return Refusal(status, reason, "no such route; GET /docs lists them")
        case QueueDown():
            return Refusal(503, "queue_down", str(error), retry_s=2)
    return Refusal(500, "internal", str(error)[:400] if isinstance(error, HarnessError) else "see the server's log")


class _AboutServer:
    """Each method answers a route of `openapi.ROUTES` that is about no ticket."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def problems(self, request: Request) -> Response:
        return JSONResponse({"problems": self._desk.roots.names, "posted_problems": self._desk.posted_problems})

    async def status(self, request: Request) -> Response:
        tickets = dict(await run_in_threadpool(self._desk.queue.counts))
        told = {"version": VERSION, "judges": self._desk.judges, "tickets": tickets}
        return JSONResponse(told | {"refusals": dict(self._desk.counts.refusals())})

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._desk.counts.text(await run_in_threadpool(self._desk.queue.counts)))

    async def healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def schema(self, request: Request) -> Response:
        return JSONResponse(openapi.schema())

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(openapi.page(), headers=_PAGE)


class _AboutTickets:
    """Each public method answers a route of `openapi.ROUTES` that is about tickets."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def submit(self, request: Request) -> Response:
        sent = await run_in_threadpool(posted, request.state.body, PostedSubmission)
        rule = _rule(request)
        self._desk.rates.spend(_holder(request), 1)
        ticket, new = await run_in_threadpool(self._submitted, sent, _holder(request))
        told = ticket_object(ticket, rule)
        where = {"location": f"/v1/tickets/{ticket.id}"}
        return JSONResponse(told, status_code=202 if new else 200, headers=where)

    async def batch(self, request: Request) -> Response:
        sent = await run_in_threadpool(posted, request.state.body, PostedBatch)
        rule, holder = _rule(request), _holder(request)
        self._desk.rates.spend(holder, len(sent.submissions))

        def submitted(one: PostedSubmission) -> dict[str, Any]:
            try:
                return ticket_object(self._submitted(one, holder)[0], rule)
            except Refusal as refusal:
                self._desk.counts.refusal(refusal.reason)
                return {"error": refusal.reason, "text": str(refusal)}

        found = await run_in_threadpool(lambda: [submitted(one) for one in sent.submissions])
        return JSONResponse({"tickets": found}, status_code=202)

    def _submitted(self, sent: PostedSubmission, holder: KeyHolder) -> tuple[Ticket, bool]:
        limits = holder.limits
        if sent.priority > limits.priority:
            raise Refusal(403, "priority", f"{holder.name} may ask for a priority of {limits.priority} at most")
        made = submission_of(sent, self._desk.roots, posted_problems=self._desk.posted_problems)
        try:
            return self._desk.queue.submit(
                made, owner=holder.name, priority=sent.priority, most_queued=limits.queued
            )  # fmt: skip
        except QueueFull:
            raise Refusal(
                429, "queue_full", f"{limits.queued} tickets of {holder.name}'s wait already", retry_s=5
            ) from None

    async def ticket(self, request: Request) -> Response:
        rule, wait_s = _rule(request), _wait_s(request)
        ticket = await self._ticket(request)
        if wait_s and ticket.state not in ENDED:
            with _waiting(self._desk, request):
                ends_s = time.monotonic() + wait_s
                while ticket.state not in ENDED and time.monotonic() < ends_s:
                    await asyncio.sleep(_POLL_S)
                    ticket = await self._ticket(request)
        return JSONResponse(ticket_object(ticket, rule))

    async def tickets(self, request: Request) -> Response:
        ids = [i for i in request.query_params.get("ids", "").split(",") if i]
        if not 1 <= len(ids) <= MOST_BATCH or not all(map(_ID.fullmatch, ids)):
            raise Refusal(400, "malformed", f"ids: 1 to {MOST_BATCH} tickets, by commas")
        rule, owner = _rule(request), _holder(request).name
        found = await run_in_threadpool(lambda: self._desk.queue.tickets(ids, owner=owner))
        return JSONResponse({"tickets": [ticket_object(ticket, rule) for ticket in found]})

    async def cancel(self, request: Request) -> Response:
        which, owner = _id(request), _holder(request).name
        ticket = await run_in_threadpool(lambda: self._desk.queue.cancel(which, owner=owner))
        if ticket is None:
            raise _unknown()
        if ticket.state != "cancelled":
            raise Refusal(409, "ended", f"the ticket has ended: {ticket.state}")
        return JSONResponse(ticket_object(ticket, RewardRule()))

    async def events(self, request: Request) -> Response:
        rule, ticket = _rule(request), await self._ticket(request)
        last = request.headers.get("last-event-id", "0")
        after = int(last) if re.fullmatch("[0-9]{1,15}", last) else 0
        _require_few(self._desk, _holder(request).name)  # before the stream begins
        return StreamingResponse(
            self._stream(request, ticket, rule, after), media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )  # fmt: skip

    async def _stream(self, request: Request, ticket: Ticket, rule: RewardRule, after: int) -> AsyncIterator[str]:
        """State, progress, and at the end all that is told of the ticket; then the stream ends."""
        state, beat_s = "", time.monotonic()
        with _waiting(self._desk, request):
            while True:
                for number, text in self._desk.board.after(ticket.id, after):
                    after = number
                    yield _event("progress", {"text": text}, number)
                if ticket.state in ENDED:
                    yield _event("ended", ticket_object(ticket, rule))
                    return
                if ticket.state != state or time.monotonic() - beat_s > _BEAT_S:
                    beat_s, said, state = time.monotonic(), ticket.state != state, ticket.state
                    yield _event("state", {"state": state}) if said else ": it goes on\n\n"
                await asyncio.sleep(_POLL_S)
                try:
                    ticket = await self._ticket(request)
                except (Refusal, HarnessError):  # the ticket was forgotten, or the queue is down: ask again
                    return

    async def _ticket(self, request: Request) -> Ticket:
        which, owner = _id(request), _holder(request).name
        found = await run_in_threadpool(lambda: self._desk.queue.tickets((which,), owner=owner))
        if not found:
            raise _unknown()
        return found[0]


@contextmanager
def _waiting(desk: Desk, request: Request) -> Iterator[None]:
    """Counts a request that waits on purpose; raises Refusal where its holder has too many."""
    name = _holder(request).name
    request.scope["state"]["waited"] = True
    _require_few(desk, name)
    desk.waiting[name] += 1
    try:
        yield
    finally:
        desk.waiting[name] -= 1


def _require_few(desk: Desk, name: str) -> None:
    if desk.waiting[name] >= _MOST_STREAMS:
        raise Refusal(429, "too_many_streams", f"{_MOST_STREAMS} requests of {name}'s wait already", retry_s=1)


def _holder(request: Request) -> KeyHolder:
    holder = request.state.holder
    assert isinstance(holder, KeyHolder)
    return holder


def _id(request: Request) -> str:
    which = str(request.path_params["ticket"])
    if not _ID.fullmatch(which):
        raise _unknown()
    return which


def _unknown() -> Refusal:
    return Refusal(404, "unknown_ticket", "no such ticket of yours")


def _rule(request: Request) -> RewardRule:
    asked = {name: request.query_params[name] for name in RewardOptions.model_fields if name in request.query_params}
    chosen = fitting(asked, RewardOptions, strict=False)
    return RewardRule(formula=chosen.formula, against=chosen.against, cap=chosen.cap)


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait_s", "0")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text):
        raise Refusal(400, "malformed", f"wait_s: seconds, {_MOST_WAIT_S:g} at most")
    return min(float(text), _MOST_WAIT_S)


def _event(name: str, value: dict[str, Any], number: int | None = None) -> str:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(value)}\n\n"
