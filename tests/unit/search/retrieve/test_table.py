"""The table of realisations: kept and found by key, given away, taken over without trust; damage counts as absence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.facts import MACHINE, TOOLCHAIN, realised
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.facts.outcome import Interval
from tilewright.facts.realised import doubt
from tilewright.facts.version import VERSION
from tilewright.search.retrieve import store as table
from tilewright.search.tune.exchange import MergeCounts

BY_HAND = Candidate(files=(SourceFile(path="model.py", text="class ModelNew: 'λ'\n"),))


def test_the_last_of_a_key_is_found_again(tmp_path: Path) -> None:
    first, other = realised(), realised(key="beef", what=BY_HAND)
    for entry in (first, other, replace(first, run="later")):
        assert table.remember(tmp_path / "t", entry) == ""
    assert table.recall(tmp_path / "t", "cpu", "c0ffee") == replace(first, run="later")
    assert table.recall(tmp_path / "t", "cuda", "c0ffee") is None and table.recall(tmp_path, "cpu", "c0ffee") is None
    assert set(table.entries(tmp_path / "t")) == {replace(first, run="later"), other}
    table.forget(tmp_path / "t", other)
    table.forget(tmp_path / "t", other)
    assert len(table.entries(tmp_path / "t")) == 1


def test_what_is_damaged_or_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "cpu-c0ffee.json").write_text('{"$": "Choice", "pattern": 3, "point": []}')
    (tmp_path / "cpu-beef.json").write_text("half")
    assert table.entries(tmp_path) == () and table.recall(tmp_path, "cpu", "c0ffee") is None
    assert table.remember(tmp_path / "cpu-beef.json", realised()).startswith("the realisation was not kept")
    assert table.remember(tmp_path, realised()) == "" and len(table.entries(tmp_path)) == 1


def test_what_is_imported_is_not_trusted_and_takes_no_place_of_what_was_judged_here(tmp_path: Path) -> None:
    mine, theirs, file = tmp_path / "mine", tmp_path / "theirs", tmp_path / "out" / "given.json"
    faster = replace(realised(), ratio=Interval(low=8.0, mid=9.0, high=10.0))
    table.remember(mine, realised())
    for entry in (faster, realised(key="beef", what=BY_HAND)):
        table.remember(theirs, entry)
    assert table.export(table.entries(theirs), file) == 2 and "/runs" not in file.read_text()
    assert table.take(mine, file) == MergeCounts(added=1, replaced=0, kept=1)
    assert table.recall(mine, "cpu", "c0ffee") == realised()
    taken = table.recall(mine, "cpu", "beef")
    assert taken == realised(key="beef", what=BY_HAND, judged=False, journal="")
    assert doubt(taken, MACHINE, tilewright=VERSION) == "not judged by itself here yet"
    assert table.take(mine, file) == MergeCounts(added=0, replaced=1, kept=1)


@pytest.mark.parametrize("text", ["no json", "{}", "[3]", '[{"$": "Stop", "best": null, "why": ""}]'])
def test_of_a_file_with_anything_else_nothing_is_taken(text: str, tmp_path: Path) -> None:
    good = json.loads(_exported(tmp_path))
    file = tmp_path / "given.json"
    file.write_text(text if not text.startswith("[") else json.dumps([*good, *json.loads(text)]))
    with pytest.raises(UserError, match=r"given\.json"):
        table.take(tmp_path / "mine", file)
    assert table.entries(tmp_path / "mine") == ()


def _exported(tmp_path: Path) -> str:
    table.export([realised()], tmp_path / "good.json")
    return (tmp_path / "good.json").read_text()


def test_a_key_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no key"):
        table.remember(tmp_path, realised(key="../../etc/passwd"))


def test_an_entry_is_doubted_when_what_its_times_rest_on_has_changed() -> None:
    def why(**changes: object) -> str:
        return doubt(realised(**changes), MACHINE, tilewright=TOOLCHAIN.tilewright)

    assert why() == ""
    assert why(device="NVIDIA H200") == "judged on NVIDIA H200"
    assert why(toolchain=replace(TOOLCHAIN, driver="570", torch="2.0")) == "driver was 570, is -; torch was 2.0, is 0"
    assert doubt(realised(), MACHINE, tilewright="9") == f"tilewright was {TOOLCHAIN.tilewright}, is 9"
