"""Replies too long, and figures that are none: neither enters a journal."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.prompts import ask
from tilewright.edges.models import open_model
from tilewright.edges.models.bounded import MOST_CHARACTERS, bounded
from tilewright.edges.models.mailbox import Mailbox
from tilewright.facts.dialogue import ModelChoice, Reply, Usage
from tilewright.facts.errors import UserError
from tilewright.facts.move import Event
from tilewright.facts.spent import Spent

FINE = Reply(text="t", finish="stop", model="m", usage=Usage(input_tokens=3, output_tokens=4), price_usd=0.5)
NO_COUNT = [-1, True, 1.5, math.nan, "7", 10**15, None]
NO_PRICE = [-0.01, math.nan, math.inf, -math.inf, True, "1"]


def test_a_long_reply_is_cut_off_as_by_the_models_own_limit() -> None:
    assert bounded(FINE) == FINE
    found = bounded(replace(FINE, text="x" * 20_000_000))
    assert (len(found.text), found.truncated) == (MOST_CHARACTERS, True)
    assert bounded(replace(FINE, text="a\ud800b")).text == "a?b"


@pytest.mark.parametrize("count", NO_COUNT)
@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "cached_tokens"])
def test_tokens_that_are_no_count_are_unknown(count: Any, field: str) -> None:
    usage = Usage(input_tokens=3, output_tokens=4)
    assert bounded(replace(FINE, usage=replace(usage, **{field: count}))).usage is None


@pytest.mark.parametrize("price", NO_PRICE)
def test_a_price_that_is_none_is_unknown_and_ends_a_budget_of_money(price: Any) -> None:
    reply = bounded(replace(FINE, price_usd=price))
    assert reply.price_usd is None
    assert Spent().after(Event(seq=0, move=ask(), outcome=reply, wall_s=1.0)).usd is None


@pytest.mark.parametrize("name", ["mailbox:{}", "cassette:{}/c=mailbox:{}", "ensemble:mailbox:{}"])
def test_every_model_is_within_bounds(tmp_path: Path, name: str) -> None:
    model = open_model(ModelChoice(name=name.format(*[tmp_path] * 2)), run="0" * 12, keys=lambda n: None, wait=False)
    model.announce([ask()])
    (letter,) = tmp_path.glob("*.prompt.md")
    reply = letter.with_name(letter.name.replace(".prompt.", ".reply."))
    reply.write_text("y" * 9_000_000 + "\nEND OF REPLY\n")
    found = model.ask(ask())
    assert len(found.text) == MOST_CHARACTERS and found.truncated
    assert sum(f.stat().st_size for f in tmp_path.glob("c")) < 1.2e6


@pytest.mark.parametrize(
    "head",
    ["input_tokens: -5\noutput_tokens: 3", "input_tokens: 1\noutput_tokens: " + "9" * 30, "price_usd: nan",
     "price_usd: -1", "price_usd: inf", "price_usd: free", "input_tokens: " + "9" * 5000 + "\noutput_tokens: 1"],
)  # fmt: skip
def test_a_letter_with_figures_that_are_none_is_refused_in_a_line(tmp_path: Path, head: str) -> None:
    box = Mailbox(tmp_path, run="0" * 12, wait=False)
    box.announce([ask()])
    (letter,) = tmp_path.glob("*.prompt.md")
    reply = letter.with_name(letter.name.replace(".prompt.", ".reply."))
    reply.write_text(f"---\n{head}\n---\ntext\nEND OF REPLY\n")
    with pytest.raises(UserError) as told:
        box.ask(ask())
    assert len(str(told.value)) < 500
    reply.unlink()
    reply.mkdir()
    with pytest.raises(UserError, match="cannot be read as a reply"):
        box.ask(ask())


@pytest.mark.parametrize(
    "line",
    ['{"key": [], "reply": {}}', "[" * 3000 + "]" * 3000, '{"key": "0-x", "reply": {"$": "Reply"}}',
     '{"key": "k", "reply": {"$": "Nobody"}}', "[1]", "7"],
)  # fmt: skip
def test_a_cassette_with_anything_else_is_told_of_in_a_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "c").write_text(line + "\n")
    with pytest.raises(UserError, match="line 1"):
        open_model(ModelChoice(name=f"cassette:{tmp_path}/c"), run="", keys=lambda n: None)


@pytest.mark.parametrize("name", ["ensemble:", "ensemble:,", "ensemble:" * 50 + "mailbox:x", "x", ":", "\0:\0"])
def test_a_name_that_means_nothing(name: str) -> None:
    with pytest.raises(UserError):
        open_model(ModelChoice(name=name), run="", keys=lambda n: None)


@pytest.mark.parametrize("url", ["http://[", "http://h:99999/", "http://h:x/", "ftp://h/", "h", "//", "http://u:p@h/"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UserError, match="--base-url"):
        open_model(ModelChoice(name="vllm:m", base_url=url), run="", keys=lambda n: None)
