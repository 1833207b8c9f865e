"""The providers: where each listens, which wire it speaks, and in which variables its key may lie."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Wire = Literal["openai", "anthropic", "google"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """`base_url` of "" must be given by the user. `known_as` is its name with pydantic-ai, ""
    where it is one of many that speak alike there. `keyless`: a server of one's
    own, which may want no key."""

    name: str
    wire: Wire
    base_url: str
    keys: tuple[str, ...]
    known_as: str
    keyless: bool = False


def _openai_like(name: str, base_url: str, key: str, *, known_as: str | None = None, keyless: bool = False) -> Provider:
    known = name if known_as is None else known_as
    return Provider(name=name, wire="openai", base_url=base_url, keys=(key,), known_as=known, keyless=keyless)


_ALL = (
    _openai_like("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    Provider(
        name="anthropic", wire="anthropic", base_url="https://api.anthropic.com", keys=("ANTHROPIC_API_KEY",),
        known_as="anthropic",
    ),
    Provider(
        name="google", wire="google", base_url="https://generativelanguage.googleapis.com",
        keys=("GOOGLE_API_KEY", "GEMINI_API_KEY"), known_as="google",
    ),
    _openai_like("deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    _openai_like("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", known_as="moonshotai"),
    _openai_like("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    _openai_like("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    _openai_like("sambanova", "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    _openai_like("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", known_as=""),
    _openai_like("sglang", "http://localhost:30000/v1", "SGLANG_API_KEY", known_as="", keyless=True),
    _openai_like("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", keyless=True),
    _openai_like("ollama", "http://localhost:11434/v1", "OLLAMA_API_KEY", keyless=True),
    _openai_like("llama.cpp", "http://localhost:8080/v1", "LLAMA_API_KEY", known_as="", keyless=True),
    _openai_like("openai-compatible", "", "OPENAI_COMPATIBLE_API_KEY", known_as="", keyless=True),
)  # fmt: skip

PROVIDERS: MappingProxyType[str, Provider] = MappingProxyType({p.name: p for p in _ALL})
