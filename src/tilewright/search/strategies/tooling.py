"""A reply that calls tools first: the calls are carried out, the model is told the answers, and it goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts.candidate import Candidate
from ...facts.dialogue import AS_IT_IS, Message, Reply, Sampling, ToolAnswer, ToolCall
from ...facts.move import CallTool
from ...facts.tools import MOST_CALLS, MOST_VARIANTS, spec_of
from .edits import edited
from .tuning import Steps

if TYPE_CHECKING:
    from .asking import Author

Dialogue = tuple[Message, ...]
SHARE = 0.3  # of the budget's time, for all tools together
_LONGEST_QUERY = 300


def replied(
    author: Author, messages: Dialogue, why: str, *, base: Candidate | None, sampling: Sampling = AS_IT_IS
) -> Steps[tuple[Reply, Dialogue]]:
    """The reply to these messages that calls no tool any more, and the dialogue up to it. `base`: what edits are of."""
    event = yield from author.move(author.ask_of(messages, why, sampling=sampling))
    assert isinstance(event.outcome, Reply)
    return (yield from continued(author, messages, event.outcome, why=why, base=base))


def continued(
    author: Author, messages: Dialogue, reply: Reply, *, why: str, base: Candidate | None
) -> Steps[tuple[Reply, Dialogue]]:
    """The same from a reply on that has come. Moves: the `CallTool`s of a reply together, then an `Ask` that brings
    their answers; of one step MOST_CALLS at most."""
    made = 0
    while reply.calls and author.context.tools and not _exhausted(author):
        answers: list[ToolAnswer] = []
        for call in reply.calls:
            made += 1
            left = author.tools_over() or ("" if made <= MOST_CALLS else f"{MOST_CALLS} calls in one step are the most")
            found = left or _move_of(call, base)
            if isinstance(found, CallTool):
                event = yield from author.move(found)
                assert isinstance(event.outcome, ToolAnswer)
                author.tools_s += event.wall_s
                found = event.outcome.text
            answers.append(ToolAnswer(id=call.id, tool=call.tool, text=found))
        if made > MOST_CALLS + 1:  # it was told, and calls on
            break
        told = "" if made < MOST_CALLS and not author.tools_over() else "Call no more tools in this step: reply now."
        said = Message(role="model", text=reply.text, calls=reply.calls)
        messages = (*messages, said, Message(role="user", text=told, answers=tuple(answers)))
        event = yield from author.move(author.ask_of(messages, f"{why}, after tools"))
        assert isinstance(event.outcome, Reply)
        reply = event.outcome
    return replace(reply, calls=()), messages


def _exhausted(author: Author) -> bool:
    """Whether not even a reply that was begun may be ended: tries and the device's time are no bar to that."""
    spending = author.spending
    return spending.out_of_time() or (not spending.over(asking=False) and bool(spending.over(answers=True)))


def _move_of(call: ToolCall, base: Candidate | None) -> CallTool | str:
    """The move that carries a call out; a text says why there is none."""
    tool = spec_of(call.tool)
    if tool is None:
        return f"there is no tool {call.tool[:40]!r}"
    try:
        given = json.loads(call.arguments or "{}")
    except ValueError as error:
        return f"its arguments are no JSON: {error}"
    if not isinstance(given, dict):
        return "its arguments are no JSON object"
    needed = [a.name for a in tool.arguments if a.needed and not given.get(a.name)]
    if needed:
        return f"it needs {', '.join(needed)}"
    if not tool.of_a_candidate:
        own = (base,) if base is not None and tool.name == "read" else ()
        text = str(given[tool.arguments[0].name])[:_LONGEST_QUERY]
        return CallTool(tool=tool.name, candidates=own, text=text)
    if tool.name == "time":
        return _variants(given["variants"], base)
    candidate, problem = _made(str(given.get("edits") or ""), base)
    if candidate is None:
        return problem
    return CallTool(tool=tool.name, candidates=(candidate,), text=str(given.get("at") or "")[:_LONGEST_QUERY])


def _variants(texts: object, base: Candidate | None) -> CallTool | str:
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        return "variants must be a list of texts"
    found: Sequence[tuple[Candidate | None, str]] = [_made(text, base) for text in texts[: MOST_VARIANTS - 1]]
    if problems := [f"variant {n}: {p}" for n, (c, p) in enumerate(found, start=1) if c is None]:
        return "; ".join(problems)
    all_of_them = (*(() if base is None else (base,)), *(c for c, _ in found if c is not None))
    return CallTool(tool="time", candidates=all_of_them)


def _made(text: str, base: Candidate | None) -> tuple[Candidate | None, str]:
    """The candidate that edits make of the base; the base where there are none."""
    if not text.strip():
        return base, "there are no files yet: give whole ones"
    found = edited(base, text)
    return found.candidate, found.problem
