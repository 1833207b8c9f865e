"""A client of a provider for one call: made with the key and the address that we name, and closed after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .bounded import bound_response
from .providers import Provider

Close = Callable[[], Awaitable[None]]
# Of every client: no response is read beyond its bound, nor made large by being unpacked.
_BOUNDED: Any = {"event_hooks": {"response": [bound_response]}, "headers": {"accept-encoding": "identity"}}
_NO_KEY = "none"  # what is sent to a server of one's own that wants no key: the client libraries insist on one


def client_of(provider: Provider, *, model: str, base_url: str, key: str, idle_s: float) -> tuple[Any, Close]:
    """A pydantic-ai model, and what closes it. The libraries' own retries are off: those in `patience` are counted and
    told."""
    make = {"openai": _openai, "anthropic": _anthropic, "google": _google}[provider.wire]
    return make(provider, model, base_url, key or _NO_KEY, idle_s)


def _openai(provider: Provider, model: str, base_url: str, key: str, idle_s: float) -> tuple[Any, Close]:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers import infer_provider_class
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, timeout=idle_s,
                         http_client=DefaultAsyncHttpxClient(**_BOUNDED))  # fmt: skip
    if provider.known_as:
        found: Any = infer_provider_class(provider.known_as)
        made = found(openai_client=client)
    else:
        made = OpenAICompatibleProvider(provider.name, openai_client=client)
    # A stream that ends without its reason was cut off: else it would pass for a whole reply.
    ends = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(model, provider=made, profile=ends), client.close


def _anthropic(provider: Provider, model: str, base_url: str, key: str, idle_s: float) -> tuple[Any, Close]:
    from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0, timeout=idle_s,
                            http_client=DefaultAsyncHttpxClient(**_BOUNDED))  # fmt: skip
    return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client)), client.close


def _google(provider: Provider, model: str, base_url: str, key: str, idle_s: float) -> tuple[Any, Close]:
    import httpx2
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    http = httpx2.AsyncClient(timeout=idle_s, **_BOUNDED)
    made = GoogleProvider(api_key=key, base_url=base_url, http_client=http)

    async def close() -> None:
        await made.client.aio.aclose()
        await http.aclose()

    return GoogleModel(model, provider=made), close
