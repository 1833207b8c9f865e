"""Children that compile: what they have said counts, though they be ended; one that dies takes no other along."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tilewright.edges.sandbox import offspring
from tilewright.run.children import shared_out
from waiting import wait_until

CHILD = """
import json, os, sys, time
import shared
for job in json.load(sys.stdin)["jobs"]:
    with open("begun", "a") as file:
        file.write(f"{job} {os.getpid()}\\n")
    time.sleep(max(job, 0))
    os.abort() if job < 0 else print(json.dumps([job, shared.MADE_BY == os.getpid()]), flush=True)
"""
SHARED = "import os\nMADE_BY = os.getpid()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "shared.py").write_text(SHARED)
    return tmp_path


def _begun(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "begun").read_text().splitlines() if (folder / "begun").exists() else []
    return [(job, int(pid)) for job, pid in map(str.split, lines)]


def test_what_a_child_said_before_its_time_was_over_counts(folder: Path) -> None:
    shared_out("child", {}, [0], folder=folder, jobs=1)  # the server has started
    said = shared_out("child", {}, [0, 0.1, 600, 0], folder=folder, jobs=1, limit_s=5.0)
    assert said == ["[0, true]", "[0.1, true]", "", ""]


def test_one_that_dies_takes_no_other_along_and_all_begin_in_their_order(folder: Path) -> None:
    said = shared_out("child", {}, [1.0, -1, 0, 0.5], folder=folder, jobs=2)
    assert said == ["[1.0, true]", "", "[0, true]", "[0.5, true]"]
    assert [job for job, _ in _begun(folder)] == ["1.0", "-1", "0", "0.5"], "the second one's place is taken at once"


def test_of_many_a_child_does_several_and_what_one_left_that_died_is_done(folder: Path) -> None:
    said = shared_out("child", {}, [0, 0, -1, *[0] * 29], folder=folder, jobs=1)
    assert said == ["[0, true]", "[0, true]", "", *["[0, true]"] * 29]
    begun = _begun(folder)
    assert len(begun) == 32 and len({pid for _, pid in begun}) < 16


def test_what_is_named_is_imported_once_for_all(folder: Path) -> None:
    said = shared_out("child", {}, [0, 0], folder=folder, jobs=2, imports=["shared", "nowhere"])
    assert said == ["[0, false]", "[0, false]"]


@pytest.mark.parametrize("how", ["interrupt", "end"])
def test_whoever_waits_is_heard_and_no_child_is_left(how: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_out("child", {}, [0], folder=folder, jobs=1)
    (folder / "begun").unlink()

    def disturb() -> None:
        wait_until(lambda: len(_begun(folder)) == 2)
        if how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            monkeypatch.setattr(offspring._ours(), "ended", True)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    started = time.monotonic()
    if how == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            shared_out("child", {}, [600, 600], folder=folder, jobs=2)
    else:
        assert shared_out("child", {}, [600, 600], folder=folder, jobs=2) == ["", ""]
    disturber.join()
    assert time.monotonic() - started < 60.0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for _, pid in _begun(folder)))
