"""What passes between a run and a model: which model, what it is asked, what it replied, and what that cost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
Finish = Literal["stop", "length", "filtered", "unknown"]

MOST_TOKENS = 32_000  # of a reply, thinking included: a kernel of 400 lines takes 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The model that the user named: `provider:name`, `mailbox:DIR`, ...; `base_url` of "" is the provider's own."""

    name: str
    base_url: str = ""
    effort: Effort | None = None
    most_tokens: int = MOST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a reply is drawn, where a strategy wants it otherwise than the user: None leaves it as it is. `effort` counts
    where the user named one, so that the model reasons, and `temperature` elsewhere; `member` numbers the models of an
    ensemble, modulo how many there are."""

    temperature: float | None = None
    effort: Effort | None = None
    member: int | None = None


AS_IT_IS = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of one of facts.tools. `arguments`: a JSON object, as the model wrote it; `id`: as the provider has it."""

    id: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What a tool says, to whoever called it. `id`: of the call, where it came over a provider's interface."""

    text: str
    id: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of the dialogue: a model's may hold calls of tools, the user's that follows holds their answers."""

    role: Literal["user", "model"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[ToolAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a model is asked: its instructions, and the dialogue so far, which ends with the user's turn."""

    system: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()  # that may be called, by their names in facts.tools

    @property
    def brings_answers(self) -> bool:
        """Whether it goes on after calls of tools: what it brings is their answers, and no new task."""
        return bool(self.messages and self.messages[-1].answers)

    @property
    def digest(self) -> str:
        """Hex digest over all of its text."""
        told = (
            [m.role, m.text, *([c.arguments for c in m.calls]), *(a.text for a in m.answers)] for m in self.messages
        )
        text = json.dumps([self.system, *told])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call. `cached_tokens` are those of the input that the provider had kept."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a model said. `usage` and `price_usd` of None are unknown, which is not nought; `tries`: calls that it took.
    `finish` is "length" where the reply was cut off at its greatest length."""

    text: str
    finish: Finish
    model: str  # as the provider names the one that answered
    usage: Usage | None = None
    price_usd: float | None = None
    tries: int = 1
    calls: tuple[ToolCall, ...] = ()  # of tools, which it waits for

    @property
    def truncated(self) -> bool:
        return self.finish == "length"

    @property
    def empty(self) -> bool:
        return not self.text.strip() and not self.calls
