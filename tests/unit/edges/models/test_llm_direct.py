"""Providers over real HTTP: three wires, each with the faults that networks and providers have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fakes import model_server as server_module
from fakes.model_server import CALL, TEXT, Server, model_server
from fakes.prompts import ask
from tilewright.edges.models import bounded as module
from tilewright.edges.models.direct import Direct, RetryPolicy
from tilewright.edges.models.providers import PROVIDERS
from tilewright.edges.toolchain.installed import distribution
from tilewright.facts.dialogue import Effort, Message, ModelChoice, Sampling, ToolAnswer, Usage
from tilewright.facts.errors import ModelOut, UserError
from tilewright.facts.tools import NAMES

# Not imported here: every worker reads every test file, and these take seconds.
DISTRIBUTIONS = ("pydantic-ai-slim", "genai-prices", "openai", "anthropic", "google-genai")
pytestmark = [
    pytest.mark.skipif(not all(map(distribution, DISTRIBUTIONS)), reason="the extra `llm` is not installed"),
    pytest.mark.each(3),
]

KEY = "sk-very-secret"
MODELS = {"openai": "gpt-4o", "anthropic": "claude-opus-5-1", "google": "gemini-2.5-pro"}
WIRES = pytest.mark.parametrize("wire", MODELS)


@pytest.fixture
def server() -> Iterator[Server]:
    with model_server() as running:
        yield running


def direct(
    server: Server, name: str, *, waits: list[float] | None = None, effort: Effort | None = None, tries: int = 3,
    known_address: bool = False,
) -> Direct:  # fmt: skip
    """`known_address`: the server stands at the provider's own address, where prices are known."""
    provider = PROVIDERS[name]
    url = server.url + ("/v1" if provider.wire == "openai" else "")
    model = MODELS.get(name, "a-model")
    if known_address:
        provider = replace(provider, base_url=url)
    choice = ModelChoice(name=f"{name}:{model}", base_url="" if known_address else url, effort=effort, most_tokens=5000)
    patience = RetryPolicy(tries=tries, idle_s=0.6)
    sleep = (waits if waits is not None else []).append
    return Direct(choice, provider, model=model, key=KEY, patience=patience, sleep=sleep)


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_is_asked_and_streamed_from(server: Server, name: str) -> None:
    reply = direct(server, name).ask(ask())
    assert (reply.text, reply.finish, reply.tries) == (TEXT, "stop", 1)
    assert reply.usage == Usage(input_tokens=1000, output_tokens=500)
    assert reply.price_usd is None  # nobody knows what this address charges
    ((path, headers, body),) = server.seen
    assert KEY in " ".join(headers.values()) and KEY not in path
    assert body.get("stream") or "stream" in path
    assert "Be brief." in str(body) and "Faster, please." in str(body) and "5000" in str(body)


@WIRES
def test_prices_are_those_of_the_model_and_unknown_is_not_nought(server: Server, wire: str) -> None:
    server.model = {"anthropic": "claude-opus-4-1"}.get(wire, "")
    known = direct(server, wire, known_address=True).ask(ask())
    # Dollars for a million tokens, in and out: 2.5 and 10, 15 and 75, 1.25 and 10 (genai-prices 0.2.3).
    assert known.price_usd == pytest.approx({"openai": 0.0075, "anthropic": 0.0525, "google": 0.00625}[wire])
    server.model = "nobody-knows-this"
    assert direct(server, wire, known_address=True).ask(ask()).price_usd is None
    server.faults, server.model = ["uncounted"], ""
    uncounted = direct(server, wire, known_address=True).ask(ask())
    assert (uncounted.usage, uncounted.price_usd) == (None, None)


@WIRES
@pytest.mark.parametrize("fault", ["500", "cut", "malformed", "unended", "empty", "stall"])
def test_what_may_pass_is_asked_again(server: Server, wire: str, fault: str) -> None:
    server.faults = [fault]
    waits: list[float] = []
    reply = direct(server, wire, waits=waits).ask(ask())
    assert (reply.text, reply.tries, len(server.seen)) == (TEXT, 2, 2)
    assert len(waits) == 1 and 1.5 <= waits[0] <= 2.5


@WIRES
def test_the_provider_says_how_long_to_wait(server: Server, wire: str) -> None:
    server.faults = ["429:41"]
    waits: list[float] = []
    assert direct(server, wire, waits=waits).ask(ask()).text == TEXT
    assert waits == [41.0]
    server.faults = ["429:9000"]
    with pytest.raises(ModelOut, match="wait 9000 s"):
        direct(server, wire, waits=waits).ask(ask())


@WIRES
def test_a_slow_stream_is_waited_for_and_a_cut_reply_is_told(server: Server, wire: str) -> None:
    server.faults = ["slow", "length"]
    model = direct(server, wire)
    assert (model.ask(ask()).text, model.ask(ask()).truncated) == (TEXT, True)
    assert len(server.seen) == 2


@WIRES
def test_waits_double_and_end(server: Server, wire: str) -> None:
    server.faults = ["500"] * 9
    waits: list[float] = []
    with pytest.raises(ModelOut, match="no reply after 4 tries"):
        direct(server, wire, waits=waits, tries=4).ask(ask())
    assert len(server.seen) == 4
    assert all(0.75 <= wait / nominal <= 1.25 for wait, nominal in zip(waits, (2, 4, 8), strict=True))


@WIRES
@pytest.mark.parametrize("status", ["401", "404", "400"])
def test_what_the_user_must_mend_is_said_once_and_without_the_key(server: Server, wire: str, status: str) -> None:
    server.faults = [f"{status}:{KEY}"]
    with pytest.raises(UserError, match=wire) as caught:
        direct(server, wire).ask(ask())
    assert len(server.seen) == 1
    assert "made to fail [key]" in str(caught.value) and caught.value.__cause__ is None
    server.faults = [f"500:{KEY}"] * 3
    with pytest.raises(ModelOut, match=r"\[key\]") as gone:
        direct(server, wire).ask(ask())
    assert KEY not in str(gone.value)


@WIRES
def test_reasoning_effort_reaches_the_wire(server: Server, wire: str) -> None:
    model = {"openai": "gpt-5", "anthropic": "claude-opus-5-1", "google": "gemini-2.5-pro"}[wire]
    made = direct(server, wire, effort="low")
    made._model = model
    made.ask(ask())
    sent = str(server.seen[0][2])
    wanted = {
        "openai": "'reasoning_effort': 'low'",
        "anthropic": "'effort': 'low'",
        "google": "'thinking_budget': 2048",
    }
    assert wanted[wire] in sent


def test_what_a_strategy_draws_reaches_the_wire(server: Server) -> None:
    drawn = replace(ask(), sampling=Sampling(temperature=0.3, effort="high"))
    direct(server, "openai").ask(drawn)
    reasons = direct(server, "openai", effort="low")
    reasons._model = "gpt-5"
    reasons.ask(drawn)
    plain, reasoned = (body for _, _, body in server.seen)
    assert (plain.get("temperature"), plain.get("reasoning_effort")) == (0.3, None)
    assert (reasoned.get("temperature"), reasoned.get("reasoning_effort")) == (None, "high")


def test_a_dialogue_keeps_its_turns(server: Server) -> None:
    first = ask()
    messages = (*first.prompt.messages, Message(role="model", text="Done."), Message(role="user", text="Again."))
    direct(server, "openai").ask(replace(first, prompt=replace(first.prompt, messages=messages)))
    sent = [(m["role"], m["content"]) for m in server.seen[0][2]["messages"]]
    assert sent == [
        ("system", "Be brief."), ("user", "Faster, please."), ("assistant", "Done."), ("user", "Again."),
    ]  # fmt: skip


@WIRES
def test_calls_of_tools_come_back_and_their_answers_go_out(server: Server, wire: str) -> None:
    """By each provider's own interface: definitions from the table, the call, then its answer beside its id."""
    server.faults += ["calls"]
    offered = replace(ask(), prompt=replace(ask().prompt, tools=NAMES))
    effort: Effort | None = "low" if wire == "anthropic" else None
    made = direct(server, wire, effort=effort)
    reply = made.ask(offered)
    (call,) = reply.calls
    assert (call.tool, json.loads(call.arguments), reply.text) == (CALL[0], json.loads(CALL[1]), TEXT)
    told = (
        *offered.prompt.messages, Message(role="model", text=reply.text, calls=reply.calls),
        Message(role="user", text="", answers=(ToolAnswer(id=call.id, tool=call.tool, text="two notes"),)),
    )  # fmt: skip
    after = made.ask(replace(offered, prompt=replace(offered.prompt, messages=told)))
    assert (after.text, after.calls) == (TEXT, ())
    first, second = (body for _, _, body in server.seen)
    sent = json.dumps(first)
    assert all(f'"{name}"' in sent for name in NAMES) and "SEARCH/REPLACE blocks" in sent
    again = json.dumps(second)
    assert "two notes" in again and "online softmax" in again
    if wire == "anthropic":  # it reasons; but the thoughts before the call were not kept, without which it refuses
        assert "output_config" in sent and "output_config" not in again


@WIRES
def test_a_stream_is_not_read_beyond_its_bound(server: Server, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.edges.models.direct.MOST_CHARACTERS", 5)
    reply = direct(server, wire).ask(ask())
    assert reply.truncated and TEXT.startswith(reply.text) and 5 < len(reply.text) < len(TEXT)
    assert len(server.seen) == 1


@WIRES
def test_a_body_without_end_is_given_up(server: Server, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    with pytest.raises(ModelOut, match="no reply after 2 tries"):
        direct(server, wire, tries=2).ask(ask())


@pytest.mark.parametrize("count", [-5, "many", None, [], {}, 1e300, True, 10**40])
def test_counts_of_a_provider_that_are_none_are_unknown(
    server: Server, monkeypatch: pytest.MonkeyPatch, count: Any
) -> None:
    made = server_module._openai

    def spoilt(fault: str, model: str) -> list[str]:
        return [e.replace("1000", json.dumps(count)) for e in made(fault, model)]

    monkeypatch.setattr(server_module, "_openai", spoilt)
    try:
        reply = direct(server, "openai", tries=1).ask(ask())
    except ModelOut:  # it could not be read at all
        return
    assert reply.usage is None or (type(reply.usage.input_tokens) is int and reply.usage.input_tokens >= 0)
    assert reply.price_usd is None or math.isfinite(reply.price_usd)
