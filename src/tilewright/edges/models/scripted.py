"""A model whose replies are written down beforehand, one for each turn: for tests, and to show a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ...facts.dialogue import Finish, Reply, ToolCall, Usage
from ...facts.errors import UserError
from ...facts.move import Ask
from .calling import calls_written

NAME = "scripted"


def scripted_reply(
    text: str, *, finish: Finish = "stop", usage: Usage | None = None, price_usd: float | None = None,
    calls: tuple[ToolCall, ...] = (),
) -> Reply:  # fmt: skip
    return Reply(text=text, finish=finish, model=NAME, usage=usage, price_usd=price_usd, calls=calls)


class Scripted:
    """Replies by the turn's number, so that a resumed run goes on where it stopped."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = tuple(replies)

    def announce(self, asks: Sequence[Ask]) -> None:
        """Nothing: all replies are there."""

    def ask(self, ask: Ask) -> Reply:
        if ask.turn >= len(self._replies):
            raise UserError(f"scripted: turn {ask.turn} has no reply; the script holds {len(self._replies)}")
        return self._replies[ask.turn]


def scripted_from(path: Path) -> Scripted:
    """From a JSON list of texts; in the place of a text may stand a list of calls of tools, as in a mailbox."""
    try:
        texts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"scripted:{path}: cannot be read ({error}); give a JSON list of texts") from None
    if not isinstance(texts, list) or not all(isinstance(t, str | list) for t in texts):
        raise UserError(f"scripted:{path}: not a JSON list of texts")
    return Scripted([
        scripted_reply(text) if isinstance(text, str) else scripted_reply("", calls=calls_written(json.dumps(text)))
        for text in texts
    ])  # fmt: skip
