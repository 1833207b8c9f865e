"""The model that a name means: `anthropic:NAME`, `openai-compatible:NAME`, `mailbox:DIR`, `ensemble:a,b`, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from ...facts.dialogue import ModelChoice, Reply
from ...facts.errors import ModelOut, UserError
from ...facts.move import Ask
from .bounded import Bounded
from .cassette import Cassette
from .mailbox import Mailbox
from .model import Keys, Model
from .providers import PROVIDERS
from .scripted import scripted_from

_NO_PROVIDER = ("scripted", "cassette", "mailbox", "ensemble")
_MOST_DEPTH = 8
_WANTED = ("pydantic_ai", "genai_prices", "openai", "anthropic", "google.genai")


def open_model(choice: ModelChoice, *, run: str, keys: Keys, wait: bool = True, seed: int = 0) -> Model:
    """A model whose replies are within bounds (`bounded`). `run` names a mailbox's letters; with `wait` false a mailbox
    raises Pending where no reply lies yet. Nothing is sent. Raises UserError for a name that means nothing, a key that
    is not there, and packages that are missing."""
    return Bounded(_opened(choice, run=run, keys=keys, wait=wait, seed=seed))


def _opened(choice: ModelChoice, *, run: str, keys: Keys, wait: bool, seed: int, depth: int = 0) -> Model:
    kind, _, rest = choice.name.partition(":")
    if depth > _MOST_DEPTH:
        raise UserError(f"{choice.name[:60]!r}: models within models, more than {_MOST_DEPTH} deep")
    if not rest:
        raise UserError(f"{choice.name!r}: not a model; write PROVIDER:NAME, as in anthropic:NAME or mailbox:DIR")

    def opened(name: str) -> Model:
        return Bounded(_opened(replace(choice, name=name), run=run, keys=keys, wait=wait, seed=seed, depth=depth + 1))

    match kind:
        case "scripted":
            return scripted_from(Path(rest))
        case "mailbox":
            return Mailbox(Path(rest), run=run, wait=wait)
        case "cassette":
            path, _, inner = rest.partition("=")
            return Cassette(Path(path), inner=opened(inner) if inner else None)
        case "ensemble":
            members = [opened(name.strip()) for name in rest.split(",") if name.strip()]
            if not members:
                raise UserError(f"{choice.name!r}: names no model; write ensemble:PROVIDER:NAME,PROVIDER:NAME")
            return ModelEnsemble(members)
    return _provided(choice, kind, rest, keys=keys, seed=seed)


def _provided(choice: ModelChoice, kind: str, model: str, *, keys: Keys, seed: int) -> Model:
    provider = PROVIDERS.get(kind)
    if provider is None:
        raise UserError(f"{choice.name!r}: unknown provider; known are {', '.join((*PROVIDERS, *_NO_PROVIDER))}")
    if not (choice.base_url or provider.base_url):
        raise UserError(f"{choice.name!r}: say where it listens, with --base-url http://HOST:PORT/v1")
    try:
        address = urlsplit(choice.base_url)
        secret = bool(address.password or address.query) or (address.port or 0) < 0  # reading the port checks it
    except ValueError as error:
        raise UserError(
            f"--base-url {choice.base_url[:80]!r}: no address ({error}); write http://HOST:PORT/v1"
        ) from None
    if choice.base_url and (address.scheme not in ("http", "https") or not address.hostname):
        raise UserError(f"--base-url {choice.base_url[:80]!r}: no address; write http://HOST:PORT/v1")
    if secret:
        raise UserError("--base-url: must hold no password or key, since it is written to the journal")
    key = keys(provider.keys) or ""
    if not key and not provider.keyless:
        raise UserError(f"{choice.name!r}: no key; set {provider.keys[0]}, or keep it in the keyring")
    if missing := [name for name in _WANTED if not _installed(name)]:
        raise UserError(f"{choice.name!r}: {missing[0]} is not installed; pip install 'tilewright[llm]'")
    from .direct import Direct

    return Direct(choice, provider, model=model, key=key, seed=seed)


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


# ---- Several models that take turns; where one can't be reached, the next answers for it


class ModelEnsemble:
    """Turn n belongs to member n modulo their number, on a resumed run too, unless the Ask names one. Replies name who
    answered."""

    def __init__(self, members: Sequence[Model]) -> None:
        self._members = tuple(members)

    def announce(self, asks: Sequence[Ask]) -> None:
        for index, member in enumerate(self._members):
            member.announce([ask for ask in asks if self._first(ask) == index])

    def ask(self, ask: Ask) -> Reply:
        """Raises ModelOut only where no member can be reached."""
        faults = []
        for step in range(len(self._members)):
            try:
                return self._members[(self._first(ask) + step) % len(self._members)].ask(ask)
            except ModelOut as fault:
                faults.append(str(fault))
        raise ModelOut("; ".join(faults))

    def _first(self, ask: Ask) -> int:
        """Whose turn it is, before anybody else is asked."""
        return (ask.turn if ask.sampling.member is None else ask.sampling.member) % len(self._members)
