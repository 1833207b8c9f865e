"""`tilewright site`: whole on the first call, what changed on the next, nothing of somebody else's taken away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fakes.command import in_process, tilewright
from fakes.runs import IMPROVED, context
from fakes.sites import campaign, dialogue, written_run
from tilewright.faces import sites
from tilewright.facts.errors import UserError


def write(root: Path, out: Path) -> sites.Made:
    return sites.write_site([root], out, say=lambda text: None)


def texts(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_the_command_says_where_the_site_is(tmp_path: Path) -> None:
    campaign(tmp_path / "campaign")
    told = json.loads(tilewright("site", "campaign", "--out", "pages", "--json", cwd=tmp_path))
    assert told["site"] == "pages/index.html" and (tmp_path / "pages" / "index.html").is_file()
    assert told["results"] == 9 and told["status"]["damaged"] == 2
    found = json.loads((tmp_path / "pages" / "site.json").read_text())
    assert all((tmp_path / "pages" / path).is_file() for path in found["files"])
    assert {r["page"] for r in found["results"] if r["page"]} <= set(found["files"])


def test_again_nothing_is_read_or_written_that_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = campaign(tmp_path / "campaign"), tmp_path / "pages"
    first = write(root, out)
    before = texts(out)
    read: list[str] = []
    monkeypatch.setattr(sites, "read", lambda source: read.append(source.place))
    again = write(root, out)
    assert (again.files, again.written, again.removed, read) == (first.files, 0, 0, [])
    assert texts(out) == before


def test_what_goes_on_is_made_anew_and_what_is_gone_goes(tmp_path: Path) -> None:
    root, out = campaign(tmp_path / "campaign"), tmp_path / "pages"
    write(root, out)
    shutil.rmtree(root / "catalog" / "10_norm")
    (root / "cutegen" / "9_gate" / "run.db").unlink()
    written_run(
        root / "cutegen" / "9_gate", context("9_gate", run="run-d", strategy="cutegen"), dialogue("other words")
    )
    made = write(root, out)
    assert made.removed == 3 and not (out / "runs" / "run-b" / "index.html").exists()
    assert "other words" in (out / "runs" / "run-d" / "dialogue.html").read_text()
    fresh = tmp_path / "fresh"
    write(root, fresh)
    assert texts(out) == texts(fresh)


@pytest.mark.parametrize("first", [["a"], ["b"], ["a", "b"]])
def test_copies_of_a_run_keep_pages_of_their_own(tmp_path: Path, first: list[str]) -> None:
    root, out = tmp_path / "runs", tmp_path / "pages"
    words = {"a": "words of a", "b": "words of b"}
    for names in (first, words):
        for name in names:
            if not (root / name).exists():
                written_run(root / name, context(f"copy {name}", run="same"), dialogue(words[name]))
        made = write(root, out)
    for entry in made.site.entries:
        text = (out / entry.href).with_name("dialogue.html").read_text()
        assert [name for name, said in words.items() if said in text] == [entry.problem[-1]]


def test_a_site_within_its_own_folder_is_none_of_its_results(tmp_path: Path) -> None:
    root = campaign(tmp_path / "campaign")
    write(root, root / "site")
    before = texts(root / "site")
    made = write(root, root / "site")
    assert (made.site.ignored, made.written) == (0, 0) and texts(root / "site") == before


def test_a_page_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    root, out = campaign(tmp_path / "campaign"), tmp_path / "pages"
    write(root, out)
    (out / "runs" / "run-a" / "index.html").unlink()
    assert write(root, out).written > 0 and (out / "runs" / "run-a" / "index.html").is_file()


def test_a_site_of_another_version_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = campaign(tmp_path / "campaign"), tmp_path / "pages"
    write(root, out)
    monkeypatch.setattr(sites, "made_by", lambda: "another")
    (out / "runs" / "run-a" / "index.html").write_text("old")
    write(root, out)
    assert (out / "runs" / "run-a" / "index.html").read_text() != "old"


def test_files_that_others_put_there_stay_and_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    root, out = campaign(tmp_path / "campaign"), tmp_path / "pages"
    write(root, out)
    (out / "CNAME").write_text("results.example")
    listed = json.loads((out / "site.json").read_text())
    outside = tmp_path / "precious"
    outside.write_text("mine")
    (out / "site.json").write_text(json.dumps({**listed, "files": [*listed["files"], "../precious"]}))
    write(root, out)
    assert (out / "CNAME").exists() and outside.read_text() == "mine"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="no site; choose another --out"):
        write(root, tmp_path / "home")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 1, "made_by": 3, "files": 4, "readings": []}'])
def test_a_damaged_index_is_no_hindrance(tmp_path: Path, text: str) -> None:
    root, out = campaign(tmp_path / "campaign"), tmp_path / "pages"
    write(root, out)
    (out / "site.json").write_text(text)
    write(root, out)
    assert json.loads((out / "site.json").read_text())["format"] == 1


def test_many_runs_by_several_processes_are_the_same_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    for n in range(6):
        written_run(root / str(n), context(f"{n}_gate", run=f"run-{n}"), IMPROVED)
    write(root, tmp_path / "alone")
    monkeypatch.setattr(sites, "_MANY", 2)
    monkeypatch.setattr(sites.os, "sched_getaffinity", lambda pid: {0, 1})
    write(root, tmp_path / "together")
    assert texts(tmp_path / "alone") == texts(tmp_path / "together")


def test_no_folder(tmp_path: Path) -> None:
    code, out, err = in_process("site", "none", cwd=tmp_path)
    assert (code, out) == (2, "") and "none: no such folder" in err
