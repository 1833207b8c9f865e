"""Files of winners: merged, the newer evidence wins; what is no file of winners changes nothing."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.facts import OF_WINNERS, winner
from tilewright.facts.errors import UserError
from tilewright.facts.space import point
from tilewright.search.tune.exchange import MergeCounts, export, merge, winners
from tilewright.search.tune.memory import remember

OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def test_of_the_same_key_the_newer_evidence_wins(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "winners.db", tmp_path / "theirs.db"
    remember(mine, winner(shape_class="a", found_at=OLD))
    remember(mine, winner(shape_class="b", found_at=NEW))
    other = replace(OF_WINNERS, torch="9")
    given = [
        winner(point(threads=1), shape_class="a", found_at=NEW),
        winner(point(threads=2), shape_class="b", found_at=OLD),
        winner(point(threads=3), shape_class="b", found_at=OLD, toolchain=other),
    ]
    export(given, theirs)
    assert merge(mine, theirs) == MergeCounts(added=1, replaced=1, kept=1)
    by_key = {(w.shape_class, w.toolchain): w for w in winners(mine)}
    assert by_key[("a", OF_WINNERS)] == given[0]
    assert by_key[("b", OF_WINNERS)] == winner(shape_class="b", found_at=NEW)
    assert by_key[("b", other)] == given[2]
    assert merge(mine, theirs) == MergeCounts(added=0, replaced=0, kept=3), "once more changes nothing"


def test_what_is_exported_is_one_file_and_replaces_an_older_one(tmp_path: Path) -> None:
    export([winner(shape_class="a"), winner(shape_class="b")], tmp_path / "to" / "w.db")
    export([winner(shape_class="c")], tmp_path / "to" / "w.db")
    assert [p.name for p in (tmp_path / "to").iterdir()] == ["w.db"]
    assert winners(tmp_path / "to" / "w.db") == (winner(shape_class="c"),)


def test_winners_are_added_to_a_file_that_is_shipped_and_the_newer_evidence_wins(tmp_path: Path) -> None:
    to = tmp_path / "shipped.db"
    export([winner(shape_class="a", found_at=OLD), winner(shape_class="b", found_at=NEW)], to, add=True)
    added = [winner(point(threads=1), shape_class=name, found_at=when) for name, when in (("a", NEW), ("b", OLD))]
    export([*added, winner(shape_class="c", found_at=OLD)], to, add=True)
    found = {w.shape_class: w for w in winners(to)}
    assert found == {
        "a": added[0],
        "b": winner(shape_class="b", found_at=NEW),
        "c": winner(shape_class="c", found_at=OLD),
    }
    assert [p.name for p in tmp_path.iterdir()] == ["shipped.db"], "one file, which can be read where none can be made"


def test_merging_makes_the_file_where_there_is_none(tmp_path: Path) -> None:
    export([winner()], tmp_path / "theirs.db")
    assert merge(tmp_path / "new" / "winners.db", tmp_path / "theirs.db") == MergeCounts(added=1, replaced=0, kept=0)
    assert winners(tmp_path / "new" / "winners.db") == (winner(),)


def test_one_bad_row_takes_nothing_over(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.db"
    export([winner(shape_class="a"), winner(shape_class="b")], theirs)
    with sqlite3.connect(theirs) as file:
        file.execute("UPDATE winners SET tried = '[]' WHERE shape_class = 'b'")
    file.close()
    with pytest.raises(UserError, match=r"theirs\.db: b: no time was measured"):
        merge(tmp_path / "winners.db", theirs)
    assert not (tmp_path / "winners.db").exists()


@pytest.mark.parametrize("content", [b"", b"not a database" * 100])
def test_what_is_no_file_of_winners_is_the_users_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(UserError, match="other: cannot be read as a file of winners"):
        merge(tmp_path / "winners.db", tmp_path / "other")
    with pytest.raises(UserError, match="no such file of winners"):
        winners(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    export([winner()], tmp_path / "theirs.db")
    with pytest.raises(UserError, match="can't be merged"):
        merge(tmp_path / "folder", tmp_path / "theirs.db")
    with pytest.raises(UserError, match="can't be written"):
        export([winner()], tmp_path / "folder")
