"""Whose folder it is: a new run takes one over from a run of which nothing came, and from no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.facts import PROBLEM, context
from tilewright.edges.ledger import Ledger
from tilewright.facts.errors import UserError
from tilewright.facts.run import Request
from tilewright.run.optimize import _new_journal
from tilewright.run.places import Places

OLD = Request(run="old", problem=PROBLEM, strategy="catalog", seed=0, budget_s=1.0)
NEW = replace(OLD, run="new", problem=replace(PROBLEM, source="mended"))


def test_a_run_that_failed_at_once_gives_its_folder_up(tmp_path: Path) -> None:
    """The user mends the problem and gives the same command again."""
    places = Places(out=tmp_path / "run", cache=tmp_path)
    _new_journal(OLD, places).close()
    with _new_journal(NEW, places) as ledger:
        assert ledger.request() == NEW
        with pytest.raises(UserError, match="another process is working on this run"):
            _new_journal(OLD, places)


@pytest.mark.parametrize("evaluator", ["", "bundle:there"])
def test_a_run_of_which_something_came_keeps_it(tmp_path: Path, evaluator: str) -> None:
    places, old = Places(out=tmp_path, cache=tmp_path), replace(OLD, evaluator=evaluator)
    with _new_journal(old, places) as ledger:
        if not evaluator:  # with one, an order may wait to be answered
            ledger.write(context())
    with pytest.raises(UserError, match=r"holds run old of problem .*`tilewright resume"):
        _new_journal(NEW, places)
    with Ledger(places.journal, readonly=True) as ledger:
        assert ledger.request() == old
