"""What is compared: runs read from their journals, strategies with parts left off, the commands that they get."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.asked import START, asking, ran, whole
from fakes.runs import context as other_context
from tilewright.edges.ledger import Ledger
from tilewright.faces import compares
from tilewright.faces.benches import BenchRequest, campaign_of
from tilewright.faces.compares import Entrant, compared_journals, entrants, run_strategies
from tilewright.faces.folders import Many
from tilewright.facts.errors import UserError
from tilewright.facts.run import Limits
from tilewright.run.campaign import Campaign

MAILBOX = BenchRequest(strategy=None, model="mailbox:box", base_url="", effort=None, wait=False)


def kept(folder: Path, strategy: str, replies: list[str]) -> None:
    """A run's folder, as one leaves it."""
    on = replace(asking(start=START, limits=Limits(calls=4)), strategy=strategy)
    folder.mkdir(parents=True)
    with Ledger(folder / "run.db") as ledger:
        ledger.write(on)
    ran(folder / "run.db", strategy, replies, on=on)


def test_runs_are_read_from_their_journals(tmp_path: Path) -> None:
    kept(tmp_path / "evolve" / "1" / "toy", "best_of_n", [whole(f"ns {500 + n}") for n in range(4)])
    for number, ns in enumerate((800, 600)):
        kept(tmp_path / "oneshot" / str(number), "oneshot", [whole(f"ns {ns}")])
    with Ledger(tmp_path / "stopped" / "run.db"):
        pass  # killed before its first record
    shown = compared_journals([tmp_path], axis="calls", svg=tmp_path / "drawn" / "best.svg")
    told = {s["strategy"]: s for s in shown.object["strategies"]}
    assert told["oneshot"]["runs"] == 2 and told["oneshot"]["spent"]["calls"] == 1
    assert told["best_of_n"]["ratio"][-1]["mid"] == pytest.approx(2.0) and told["best_of_n"]["spent"]["tokens"] == 4000
    assert told["oneshot"]["ratio"][0]["mid"] == pytest.approx((1000 / 800 * 1000 / 600) ** 0.5)
    assert (tmp_path / "drawn" / "best.svg").read_text().startswith("<svg")
    json.dumps(shown.object)
    with pytest.raises(UserError, match="no such folder"):
        compared_journals([tmp_path / "nowhere"], axis="calls", svg=None)
    with pytest.raises(UserError, match="no run there"):
        compared_journals([tmp_path / "stopped"], axis="calls", svg=None)
    assert other_context().strategy == "catalog"


def test_strategies_are_named_with_what_is_left_off() -> None:
    assert entrants("catalog, evolve,evolve-islands-summary,evolve") == (
        Entrant(strategy="catalog", without=()),
        Entrant(strategy="evolve", without=()),
        Entrant(strategy="evolve", without=("islands", "summary")),
    )
    for text, says in (
        ("nobody", "'nobody' is none"),
        ("evolve-isles", "no such part"),
        ("oneshot-repair", "no parts"),
    ):
        with pytest.raises(UserError, match=says):
            entrants(text)


def test_each_strategy_runs_as_often_as_it_differs_under_the_same_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Campaign] = []

    def campaign(one: Campaign, **_: Any) -> tuple[dict[str, Any], ...]:
        ran.append(one)
        return ({"status": "pending" if one.asks else "improved"},)

    monkeypatch.setattr(compares, "run_campaign", campaign)
    (tmp_path / "a.py").touch()
    bare = replace(MAILBOX, model=None)
    shared = campaign_of(
        str(tmp_path / "a.py"), Many(out=tmp_path / "out"), target="cpu", budget="20calls",
        settings=("--no-sanitize",), asked=bare,
    )  # fmt: skip
    chosen = entrants("catalog,evolve-islands")
    assert run_strategies(shared, chosen, asked=MAILBOX, repeats=2, seed=7, say=print) == 2
    assert [c.out.relative_to(tmp_path / "out").as_posix() for c in ran] == [
        "catalog/1",
        "evolve-islands/1",
        "evolve-islands/2",
    ]
    assert ran[0].flags == [
        "--target", "cpu", "--budget", "120s,20calls", "--no-sanitize", "--strategy", "catalog",
        "--without", "table", "--seed", "7",
    ]  # fmt: skip
    model = ["--strategy", "evolve", "--model", "mailbox:box"]
    assert ran[2].flags[5:] == [*model, "--without", "islands,table", "--seed", "8"], (
        "no one begins with another's find"
    )
    assert not ran[2].wait and ran[2].files == (tmp_path / "a.py",)
