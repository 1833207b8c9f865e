"""The dialogue of a run with a model, turn by turn; each prompt without what the one before it already said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...facts.dialogue import Message, Reply
from ...facts.move import Ask, Event
from ...facts.outcome import Failure
from .. import words
from .entries import is_judging


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueTurn:
    """`system`: the instructions, "" where they are the turn's before; `kept`: how many messages of the turn before
    this prompt begins with; `messages`: those that follow. `led_to`: the events that judged a candidate before the next
    turn. `refused`: why there is no reply."""

    number: int
    seq: int
    model: str
    why: str
    system: str
    kept: int
    messages: tuple[Message, ...]
    reply: str
    said: str
    refused: str
    seconds: str
    led_to: tuple[int, ...]

    @property
    def wordless(self) -> bool:
        """Whether the journal was kept without the words of its prompts."""
        return not self.kept and not any(m.text for m in self.messages)


def turns(events: Sequence[Event]) -> tuple[DialogueTurn, ...]:
    asked = [e for e in events if isinstance(e.move, Ask)]
    ends = [e.seq for e in asked[1:]] + [len(events)]
    found: list[DialogueTurn] = []
    system: str = ""
    before: tuple[Message, ...] = ()
    for number, (event, end) in enumerate(zip(asked, ends, strict=True), start=1):
        led_to = tuple(e.seq for e in events[event.seq : end] if is_judging(e))
        found.append(_turn(event, number=number, system=system, before=before, led_to=led_to))
        assert isinstance(event.move, Ask)
        system, before = event.move.prompt.system, event.move.prompt.messages
    return tuple(found)


def _turn(
    event: Event, *, number: int, system: str, before: tuple[Message, ...], led_to: tuple[int, ...]
) -> DialogueTurn:  # fmt: skip
    move, reply = event.move, event.outcome
    assert isinstance(move, Ask)
    prompt = move.prompt
    kept = len(before) if before and prompt.messages[: len(before)] == before else 0
    refused = reply.summary if isinstance(reply, Failure) else ""
    return DialogueTurn(
        number=number, seq=event.seq, model=move.model, why=move.why,
        system="" if prompt.system == system else prompt.system, kept=kept, messages=prompt.messages[kept:],
        reply=reply.text if isinstance(reply, Reply) else "",
        said=words.reply(reply) if isinstance(reply, Reply) else "",
        refused=refused, seconds=f"{event.wall_s:.1f} s", led_to=led_to,
    )  # fmt: skip
