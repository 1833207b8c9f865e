"""The memory of winners: what is remembered comes back, concurrent writers and damage lose nothing but the damaged."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.facts.space import Point, point
from tilewright.stages.tune.memory import recall, remember

POINT = point(threads=256, vector=4, layout="rows", split=True)


def test_what_is_remembered_comes_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "new" / "winners.db"
    assert recall(path, "m", "s") is None
    assert remember(path, "m", "s", POINT, 1234.5) == ""
    assert recall(path, "m", "s") == POINT
    assert recall(path, "other machine", "s") is None
    assert recall(path, "m", "other class") is None


def test_the_last_winner_counts(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    remember(path, "m", "s", POINT, 10.0)
    remember(path, "m", "s", point(threads=128), 20.0)
    assert recall(path, "m", "s") == point(threads=128)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.text(max_size=8), st.one_of(st.integers(-(2**60), 2**60), st.booleans(), st.text(max_size=8)))
)
def test_any_point_comes_back_with_its_types(tmp_path: Path, knobs: dict[str, int | str | bool]) -> None:
    given_point: Point = tuple(sorted(knobs.items()))
    remember(tmp_path / "w.db", "m", "s", given_point, 1.0)
    assert repr(recall(tmp_path / "w.db", "m", "s")) == repr(given_point)


@pytest.mark.parametrize("damage", [b"not a database, but long enough to be read as one" * 50, b"\0" * 4096])
def test_a_damaged_file_is_moved_aside_and_told(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "winners.db"
    path.write_bytes(damage)
    assert recall(path, "m", "s") is None
    warning = remember(path, "m", "s", POINT, 1.0)
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes() == damage and str(aside) in warning and "\n" not in warning
    assert recall(path, "m", "s") == POINT
    assert remember(path, "m", "t", POINT, 1.0) == "", "the new file is sound"


def test_a_damaged_page_is_found_when_it_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    for i in range(200):
        remember(path, "m", f"s{i}", POINT, 1.0)
    with sqlite3.connect(path) as memory:
        memory.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    memory.close()
    text = bytearray(path.read_bytes())
    text[4096:] = b"\xff" * (len(text) - 4096)
    path.write_bytes(bytes(text))
    assert recall(path, "m", "s7") is None
    assert "moved to" in remember(path, "m", "s7", POINT, 1.0)
    assert recall(path, "m", "s7") == POINT


def test_a_winner_that_is_no_point_is_not_recalled(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    remember(path, "m", "s", POINT, 1.0)
    with sqlite3.connect(path) as memory:
        memory.execute("UPDATE winners SET point = '[1, 2'")
    memory.close()
    assert recall(path, "m", "s") is None


def test_a_place_that_cannot_be_written_is_told_not_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "was not remembered" in remember(tmp_path / "file" / "w.db", "m", "s", POINT, 1.0)
    assert "was not remembered" in remember(tmp_path, "m", "s", POINT, 1.0)
    assert recall(tmp_path, "m", "s") is None


WRITER = """
import sys
from pathlib import Path
from tilewright.facts.space import point
from tilewright.stages.tune.memory import remember
for i in range(int(sys.argv[3])):
    warning = remember(Path(sys.argv[1]), "m", f"{sys.argv[2]}-{i}", point(threads=i), 1.0)
    assert not warning, warning
    print(i, flush=True)
"""


def _writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE)


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    writers = [_writer(path, name, 25) for name in "abc"]
    assert [w.communicate(timeout=60)[0].split()[-1] for w in writers] == ["24"] * 3
    assert [w.returncode for w in writers] == [0, 0, 0]
    for name in "abc":
        assert [recall(path, "m", f"{name}-{i}") for i in range(25)] == [point(threads=i) for i in range(25)]


def test_a_kill_loses_at_most_the_write_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    writer = _writer(path, "a", 100_000)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=60)
    assert [recall(path, "m", f"a-{i}") for i in told] == [point(threads=i) for i in told]
    assert remember(path, "m", "after", POINT, 1.0) == ""
