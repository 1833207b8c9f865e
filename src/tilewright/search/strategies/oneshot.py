"""The controls: `oneshot` asks once and judges once, `best_of_n` takes the best of several independent replies."""

from __future__ import annotations

from ...facts.outcome import Failure
from ...facts.run import SearchContext
from .asking import Author, Passed, read
from .tuning import Steps

REPLIES = 4  # of best_of_n


def oneshot(context: SearchContext) -> Steps[None]:
    """Moves: those of `Author.calls`; one `Ask`, one `Try`, `Stop`."""
    yield from _best_of(context, 1)


def best_of_n(context: SearchContext) -> Steps[None]:
    """Moves: those of `Author.calls`; REPLIES `Ask`s of the same prompt, together; a `Try` for each candidate in them,
    together; `Stop`."""
    yield from _best_of(context, REPLIES)


def _best_of(context: SearchContext, count: int) -> Steps[None]:
    author = Author(context)
    yield from author.calls()
    messages = author.first("write", ledger=[], near=context.near)
    if context.limits.calls is not None:
        count = min(count, context.limits.calls)
    asks = [author.ask_of(messages, f"reply {n + 1} of {count}") for n in range(count)]
    found = [read(reply, None) for reply in (yield from author.replies(asks))]
    written = {f"reply {n}: {w.idea}": w.candidate for n, w in enumerate(found, start=1) if w.candidate is not None}
    outcomes = yield from author.all_tried([(candidate, why) for why, candidate in written.items()])
    problems = [w.problem for w in found if w.candidate is None]
    problems += [f"{o.reason}: {o.summary}" for o in outcomes if isinstance(o, Failure)]
    problems += ["not judged: the budget is used up"] * (len(written) - len(outcomes))
    passed = [o for o in outcomes if isinstance(o, Passed)]
    told = f"{count} repl{'y' if count == 1 else 'ies'}" + (f", of no use: {'; '.join(problems)}" if problems else "")
    yield from author.ended(min(passed, key=lambda p: p.ns, default=None), told)
