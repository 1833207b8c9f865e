"""`tilewright patterns`: rules and winners listed, one shown, all of them searched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.facts import winner
from tilewright.faces.patterns import known
from tilewright.facts.errors import UserError
from tilewright.search.tune import memory


def test_rules_and_winners_are_listed_shown_and_found(tmp_path: Path) -> None:
    assert known("list", "", cache=tmp_path, say=print).object["winners"] == []
    assert memory.remember(tmp_path / memory.FILE, winner()) == ""
    listed = json.loads(json.dumps(known("list", "", cache=tmp_path, say=print).object))
    assert "scan" in [r["name"] for r in listed["rules"]] and [w["title"] for w in listed["winners"]] == [
        winner().title
    ]
    (text,) = known("show", "scan", cache=tmp_path, say=print).drawn
    assert isinstance(text, str) and "`cumsum`" in text and "kernels/cuda/rows/scan.py" in text
    (text,) = known("show", winner().shape_class, cache=tmp_path, say=print).drawn
    assert isinstance(text, str) and winner().device in text
    found = known("search", winner().title, cache=tmp_path, say=print).object
    assert ("winner", winner().shape_class) in [(f["kind"], f["name"]) for f in found]


@pytest.mark.parametrize(
    ("action", "text", "says"),
    [
        ("show", "nothing such", "no rule, note, skeleton"),
        ("show", "", "needs a name"),
        ("list", "scan", "takes no name"),
    ],
)
def test_what_is_not_there_is_the_users_to_mend(action: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        known(action, text, cache=tmp_path, say=print)  # type: ignore[arg-type]
