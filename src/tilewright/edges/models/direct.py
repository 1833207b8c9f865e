"""A provider over the network, by pydantic-ai's direct requests: streamed, tried again, its usage and price told."""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...facts.dialogue import Finish, ModelChoice, Prompt, Reply, Usage
from ...facts.errors import ModelOut, UserError
from ...facts.move import Ask
from .bounded import MOST_CHARACTERS, is_count
from .calling import calls_in, parameters, parts_of
from .clients import Close, client_of
from .providers import Provider

_FINISH: dict[str | None, Finish] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "filtered",
    "tool_call": "stop",
}
_MOST_OF_AN_ERROR = 300
_NONSENSE = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)  # of parsing foreign bytes


class Direct:
    """One model of one provider. The key is held here alone: it stands in no fact, no journal and no error text."""

    def __init__(
        self, choice: ModelChoice, provider: Provider, *, model: str, key: str, patience: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep, seed: int = 0,
    ) -> None:  # fmt: skip
        self._choice, self._provider, self._model, self._key = choice, provider, model, key
        self._base_url = choice.base_url or provider.base_url
        self._patience = patience or RetryPolicy()
        self._sleep = sleep
        self._seed = seed

    def announce(self, asks: Sequence[Ask]) -> None:
        """Nothing: a call is made when its turn comes."""

    def ask(self, ask: Ask) -> Reply:
        dice = random.Random(f"{self._seed} {ask.turn}")
        return patiently(lambda tried: self._once(ask, tried), patience=self._patience, dice=dice, sleep=self._sleep)

    def _once(self, ask: Ask, tried: int) -> Reply:
        from pydantic_ai import exceptions as wrong

        model, close = client_of(
            self._provider, model=self._model, base_url=self._base_url, key=self._key, idle_s=self._patience.idle_s
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of libraries, about a reply that is not as agreed
                return self._reply(asyncio.run(self._streamed(model, close, ask)), tried)
        except (wrong.ModelAuthenticationError, wrong.ModelQuotaExceededError, wrong.ModelNotFoundError) as error:
            raise UserError(f"{self._choice.name}: {self._told(error)}") from None
        except (wrong.ModelRateLimitError, wrong.ModelUnavailableError, wrong.ModelServerError) as error:
            raise Passing(self._told(error), retry_after_s=error.retry_after) from None
        except wrong.ModelRequestRejectedError as error:
            raise UserError(f"{self._choice.name}: the request was rejected: {self._told(error)}") from None
        except wrong.ModelHTTPError as error:
            if error.status_code in (408, 409, 429) or error.status_code >= 500:
                raise Passing(self._told(error), retry_after_s=error.retry_after) from None
            raise UserError(f"{self._choice.name}: {self._told(error)}") from None
        except (wrong.ModelAPIError, wrong.UnexpectedModelBehavior, OSError, *_NONSENSE) as error:
            # A connection that was cut, a deadline that passed, a reply that is no JSON, or another than agreed.
            raise Passing(self._told(error)) from None

    async def _streamed(self, model: Any, close: Close, ask: Ask) -> Any:
        from pydantic_ai.direct import model_request_stream

        settings: Any = {
            "max_tokens": self._choice.most_tokens,
            "request_timeout": self._patience.call_s,
            "timeout": self._patience.idle_s,
        }
        # Anthropic wants the thoughts before a call of a tool back with its answer, which nobody has kept.
        aside = self._provider.wire == "anthropic" and ask.prompt.brings_answers
        if self._choice.effort is not None and aside:
            pass
        elif self._choice.effort is not None:  # a model that reasons takes no temperature
            settings["thinking"] = ask.sampling.effort or self._choice.effort
        elif ask.sampling.temperature is not None:
            settings["temperature"] = ask.sampling.temperature
        try:
            messages = _messages(ask.prompt)
            async with model_request_stream(
                model, messages, model_settings=settings, model_request_parameters=parameters(ask.prompt)
            ) as stream:
                seen = 0
                async for event in stream:
                    seen += _characters(event)
                    if seen > MOST_CHARACTERS:  # the rest is not waited for, nor paid for
                        return replace(stream.get(), finish_reason="length")
                return stream.get()
        finally:
            await close()

    def _reply(self, response: Any, tried: int) -> Reply:
        from pydantic_ai.messages import TextPart

        if response.finish_reason is None:
            raise Passing("the stream ended before the reply did")
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        finish = _FINISH.get(response.finish_reason, "unknown")
        calls = calls_in(response.parts)
        if not text.strip() and not calls and finish == "stop" and tried < self._patience.tries:
            raise Passing("the reply was empty")
        usage = _usage(response.usage)
        name = response.model_name or self._model
        known_as, address = self._provider.known_as or self._provider.name, self._choice.base_url
        priced = usage is not None and not self._provider.keyless
        price = price_usd(response.usage, model=name, provider=known_as, base_url=address) if priced else None
        return Reply(text=text, finish=finish, model=name, usage=usage, price_usd=price, tries=tried, calls=calls)

    def _told(self, error: BaseException) -> str:
        """The error in a line, without the key."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return (text.replace(self._key, "[key]") if self._key else text)[:_MOST_OF_AN_ERROR]


def _characters(event: Any) -> int:
    """How much text a piece of a stream brings."""
    piece = getattr(event, "part", None) or getattr(event, "delta", None)
    texts = (getattr(piece, name, None) for name in ("content", "content_delta", "args", "args_delta"))
    return sum(len(text) for text in texts if isinstance(text, str))


def _messages(prompt: Prompt) -> list[Any]:
    from pydantic_ai.messages import ModelRequest, ModelResponse, SystemPromptPart, TextPart, UserPromptPart

    made: list[Any] = []
    for message in prompt.messages:
        if message.role == "user":
            first = [SystemPromptPart(content=prompt.system)] if prompt.system and not made else []
            said = [UserPromptPart(content=message.text)] if message.text or not message.answers else []
            made.append(ModelRequest(parts=[*first, *parts_of(message), *said]))
        else:
            text = [TextPart(content=message.text)] if message.text or not message.calls else []
            made.append(ModelResponse(parts=[*text, *parts_of(message)]))
    return made


def _usage(usage: Any) -> Usage | None:
    """None where the provider told nothing, or no numbers."""
    counts = usage.input_tokens, usage.output_tokens, usage.cache_read_tokens or 0
    if not all(map(is_count, counts)) or not any(counts[:2]):
        return None
    return Usage(
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cached_tokens=usage.cache_read_tokens or 0
    )


# ---- What a call cost, by genai-prices' table: None where the table does not know the model at that address


def price_usd(usage: Any, *, model: str, provider: str, base_url: str) -> float | None:
    """`usage` as pydantic-ai counts it. Where the user named an address, the price is that address's, if it is known:
    a server of one's own has no price, whatever its model is called."""
    from genai_prices import calc_price

    try:
        if base_url:
            return float(calc_price(usage, model, provider_api_url=base_url).total_price)
        return float(calc_price(usage, model, provider_id=provider).total_price)
    except (LookupError, ValueError, TypeError, ArithmeticError):  # unknown, or counts that are none
        return None


# ---- How often a model is asked again, and how long one waits in between: backoff, unless the provider names a time

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`idle_s` bounds the wait between two pieces of a stream, `call_s` a whole call. A provider that wants a longer
    wait than `longest_wait_s` is not waited for."""

    tries: int = 6
    first_wait_s: float = 2.0
    longest_wait_s: float = 300.0
    idle_s: float = 180.0
    call_s: float = 1800.0

    def wait_s(self, tried: int, dice: random.Random) -> float:
        """After `tried` tries: doubled each time, and spread by up to a half so that runs do not march in step."""
        return min(self.first_wait_s * 2.0 ** (tried - 1), self.longest_wait_s) * dice.uniform(0.75, 1.25)


class Passing(Exception):
    """A fault that may pass; `retry_after_s` where the provider said how long it takes."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        sound = retry_after_s is not None and retry_after_s >= 0  # which NaN is not
        self.retry_after_s = retry_after_s if sound else None


def patiently(
    call: Callable[[int], T], *, patience: RetryPolicy, dice: random.Random, sleep: Callable[[float], None] = time.sleep
) -> T:
    """What `call` returns, given the number of the try; asked again after each Passing. Raises ModelOut after the last,
    or where the provider wants a longer wait than patience allows."""
    for tried in range(1, patience.tries + 1):
        try:
            return call(tried)
        except Passing as fault:
            wait = fault.retry_after_s if fault.retry_after_s is not None else patience.wait_s(tried, dice)
            if tried == patience.tries:
                raise ModelOut(f"no reply after {tried} tries: {fault}") from None
            if wait > patience.longest_wait_s:
                raise ModelOut(f"the provider asks to wait {wait:.0f} s: {fault}") from None
            sleep(wait)
    raise AssertionError("unreachable")
