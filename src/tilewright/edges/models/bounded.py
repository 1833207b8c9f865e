"""What may come of a model: a reply of bounded length, and figures that are such. Nothing else enters a journal."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from ...facts.dialogue import Reply, ToolCall, Usage
from ...facts.move import Ask
from .model import Model

MOST_CHARACTERS = 1_000_000  # of a reply: a kernel of 400 lines has 20,000
MOST_BYTES = 16 << 20  # of what a provider sends for one: each piece of a stream comes in some 200 bytes of its own
_MOST_TOKENS = 10**12
_LONGEST_NAME = 200


class Bounded:
    """A model whose replies are within bounds: `bounded` of each."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    def announce(self, asks: Sequence[Ask]) -> None:
        self._inner.announce(asks)

    def ask(self, ask: Ask) -> Reply:
        return bounded(self._inner.ask(ask))


def bounded(reply: Reply) -> Reply:
    """The reply, cut off at MOST_CHARACTERS as if by the model's own greatest length; tokens and a price that are no
    number of such become unknown, so that a budget of them ends instead of being without end."""
    long = len(reply.text) > MOST_CHARACTERS
    text = reply.text[:MOST_CHARACTERS].encode(errors="replace").decode()  # halves of letters can't be kept
    usage = reply.usage if reply.usage is not None and _counted(reply.usage) else None
    price = reply.price_usd if _is_price(reply.price_usd) else None
    return replace(
        reply, text=text, calls=tuple(map(_kept, reply.calls)),
        finish="length" if long else reply.finish, usage=usage, price_usd=price,
        model="".join(c if c.isprintable() else "?" for c in reply.model[:_LONGEST_NAME]),
    )  # fmt: skip


def _kept(call: ToolCall) -> ToolCall:
    """The call, without halves of letters."""
    return replace(
        call, **{name: getattr(call, name).encode(errors="replace").decode() for name in ("id", "tool", "arguments")}
    )


def _counted(usage: Usage) -> bool:
    return all(map(is_count, (usage.input_tokens, usage.output_tokens, usage.cached_tokens)))


def is_count(value: object) -> bool:
    """Whether it can be a number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


async def bound_response(response: Any) -> None:
    """An httpx event hook: reading the response raises ValueError beyond MOST_BYTES, and for what is compressed, which
    we have not asked for."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ValueError("the provider compressed its reply, unasked")
    response.stream = _counting(response.stream)


def _counting(stream: Any) -> Any:
    """The stream, with a bound on all of it together. Its class stays: the client library looks at it."""

    class Counting(type(stream)):  # type: ignore[misc]
        def __init__(self) -> None:
            """Nothing of its own: it stands for `stream`."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            seen = 0
            async for chunk in stream:
                seen += len(chunk)
                if seen > MOST_BYTES:
                    raise ValueError(f"the provider sent more than {MOST_BYTES >> 20} MB")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Counting()
