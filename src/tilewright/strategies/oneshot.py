"""The controls: `oneshot` asks once and judges once, `best_of_n` takes the best of several independent replies."""

from __future__ import annotations

from ..facts.move import Event
from ..facts.outcome import Failure
from ..facts.run import Brief
from .asking import Author, Passed, read, reply_of
from .tuning import Steps

REPLIES = 4  # of best_of_n


def oneshot(brief: Brief) -> Steps[None]:
    """Moves: one `Ask`, one `Try`, `Stop`."""
    yield from _best_of(brief, 1)


def best_of_n(brief: Brief) -> Steps[None]:
    """Moves: REPLIES `Ask`s of the same prompt, together; a `Try` for each candidate in them; `Stop`."""
    yield from _best_of(brief, REPLIES)


def _best_of(brief: Brief, count: int) -> Steps[None]:
    author = Author(brief)
    messages = author.first("write", ledger=[], near=brief.near)
    if brief.limits.calls is not None:
        count = min(count, brief.limits.calls)
    events = yield tuple(author.ask_of(messages, f"reply {n + 1} of {count}") for n in range(count))
    assert isinstance(events, tuple)
    best: Passed | None = None
    problems = []
    for number, event in enumerate(events, start=1):
        assert isinstance(event, Event)
        author.spending.count(event)
        found = read(reply_of(event), None)
        if found.candidate is None or (number > 1 and _out_of_time(author)):
            problems.append(found.problem or "not judged: the time is used up")
            continue
        passed = yield from author.tried(found.candidate, f"reply {number}: {found.idea}")
        if isinstance(passed, Failure):
            problems.append(f"{passed.reason}: {passed.summary}")
        elif best is None or passed.ns < best.ns:
            best = passed
    told = f"{count} repl{'y' if count == 1 else 'ies'}" + (f", of no use: {'; '.join(problems)}" if problems else "")
    yield from author.ended(best, told)


def _out_of_time(author: Author) -> bool:
    """What was asked for is judged, whatever the replies cost; but not beyond the time."""
    limit = author.brief.limits.device_s
    return author.spending.seconds >= author.brief.budget_s or (limit is not None and author.spending.device_s >= limit)
