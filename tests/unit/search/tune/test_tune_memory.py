"""The memory of winners: what is remembered comes back, concurrent writers and damage lose nothing but the damaged."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.facts import MACHINE, OF_WINNERS, WON, winner
from tilewright.facts.space import Point, point
from tilewright.facts.winner import Winner
from tilewright.search.tune import memory
from tilewright.search.tune.exchange import export
from tilewright.search.tune.memory import remember

OLDER = replace(OF_WINNERS, driver="an older driver")


def recall(path: Path, shape_class: str = "s", *, shipped: Path = Path("/nowhere")) -> Winner | None:
    return memory.recall(path, MACHINE, OF_WINNERS, shape_class, shipped=shipped)


def test_what_is_remembered_comes_back_equal_with_its_evidence(tmp_path: Path) -> None:
    path = tmp_path / "new" / "winners.db"
    assert recall(path) is None
    assert remember(path, winner()) == ""
    assert recall(path) == winner()
    assert recall(path, "other class") is None
    for other in (replace(MACHINE, device="another"), replace(MACHINE, target="cuda")):
        assert memory.recall(path, other, OF_WINNERS, "s") is None


def test_the_last_winner_counts(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    remember(path, winner())
    remember(path, winner(point(threads=128), found_at="2020-01-01T00:00:00+00:00"))
    assert recall(path) == winner(point(threads=128), found_at="2020-01-01T00:00:00+00:00")


@pytest.mark.parametrize("field", ["driver", "torch", "dsl", "tilewright"])
def test_another_toolchains_winner_is_found_as_what_it_is(tmp_path: Path, field: str) -> None:
    path = tmp_path / "winners.db"
    other = replace(OF_WINNERS, **{field: "another"})
    remember(path, winner(toolchain=other, found_at="2026-01-01T00:00:00+00:00"))
    assert recall(path) == winner(toolchain=other, found_at="2026-01-01T00:00:00+00:00")
    remember(
        path, winner(point(threads=128), toolchain=replace(other, torch="x"), found_at="2026-02-01T00:00:00+00:00")
    )
    assert recall(path).point == point(threads=128), "the newest"
    remember(path, winner(point(threads=512), found_at="2025-01-01T00:00:00+00:00"))
    assert recall(path).point == point(threads=512), "this very toolchain's, however old"


def test_what_is_shipped_is_read_where_nothing_can_be_written_and_after_ones_own(tmp_path: Path) -> None:
    path, shipped = tmp_path / "winners.db", tmp_path / "package" / "shipped.db"
    export([winner(point(threads=1)), winner(point(threads=2), shape_class="t")], shipped)
    shipped.chmod(0o444)
    shipped.parent.chmod(0o555)
    try:
        assert recall(path, shipped=shipped).point == point(threads=1)
        remember(path, winner(point(threads=3), toolchain=OLDER))
        assert recall(path, shipped=shipped).point == point(threads=1), "of this toolchain"
        remember(path, winner(point(threads=4)))
        assert recall(path, shipped=shipped).point == point(threads=4), "one's own"
        assert recall(path, "t", shipped=shipped).point == point(threads=2)
        assert [p.name for p in shipped.parent.iterdir()] == ["shipped.db"]
    finally:
        shipped.parent.chmod(0o755)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.text(max_size=8), st.one_of(st.integers(-(2**60), 2**60), st.booleans(), st.text(max_size=8)))
)
def test_any_point_comes_back_with_its_types(tmp_path: Path, knobs: dict[str, int | str | bool]) -> None:
    given_point: Point = tuple(sorted(knobs.items()))
    assert remember(tmp_path / "w.db", winner(given_point)) == ""
    assert repr(recall(tmp_path / "w.db")) == repr(winner(given_point))


@pytest.mark.parametrize("damage", [b"not a database, but long enough to be read as one" * 50, b"\0" * 4096])
def test_a_damaged_file_is_moved_aside_and_told(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "winners.db"
    path.write_bytes(damage)
    assert recall(path) is None
    warning = remember(path, winner())
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes() == damage and str(aside) in warning and "\n" not in warning
    assert recall(path) == winner()
    assert remember(path, winner(shape_class="t")) == "", "the new file is sound"


def test_a_damaged_page_is_found_when_it_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    for i in range(100):
        remember(path, winner(shape_class=f"s{i}"))
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.close()
    text = bytearray(path.read_bytes())
    text[4096:] = b"\xff" * (len(text) - 4096)
    path.write_bytes(bytes(text))
    assert recall(path, "s7") is None
    assert "moved to" in remember(path, winner(shape_class="s7"))
    assert recall(path, "s7") == winner(shape_class="s7")


def test_a_file_of_the_first_format_is_set_aside_and_told(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("CREATE TABLE winners (machine TEXT, shape_class TEXT, point TEXT, time_ns REAL)")
        file.execute("INSERT INTO winners VALUES ('m', 's', '[]', 1.0)")
    file.close()
    assert recall(path) is None
    warning = remember(path, winner())
    (aside,) = tmp_path.glob("winners.db.format-0-*")
    assert "an older version" in warning and str(aside) in warning and "\n" not in warning
    with sqlite3.connect(aside) as old:
        assert old.execute("SELECT shape_class FROM winners").fetchall() == [("s",)]
    old.close()
    assert recall(path) == winner()


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    remember(path, winner())
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    assert recall(path) is None
    warning = remember(path, winner())
    assert "format 99" in warning and "a newer version wrote it" in warning
    assert list(tmp_path.glob("winners.db.*-*")) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("point", "[1, 2"),
        ("point", '[["threads", 1.5]]'),
        ("point", '[["never measured", 1]]'),
        ("tried", "[]"),
        ("tried", "[1]"),
        ("tried", '[{"$": "Nothing"}]'),
        ("floor_share", "much"),
    ],
)
def test_a_row_that_is_no_winner_is_not_recalled(tmp_path: Path, column: str, value: str) -> None:
    path = tmp_path / "winners.db"
    remember(path, winner())
    with sqlite3.connect(path) as file:
        file.execute(f"UPDATE winners SET {column} = ?", (value,))
    file.close()
    assert recall(path) is None


def test_a_place_that_cannot_be_written_is_told_not_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "was not remembered" in remember(tmp_path / "file" / "w.db", winner())
    assert "was not remembered" in remember(tmp_path, winner())
    assert recall(tmp_path) is None


WRITER = """
import sys
from pathlib import Path
from fakes.facts import winner
from tilewright.search.tune.memory import remember
for i in range(int(sys.argv[3])):
    warning = remember(Path(sys.argv[1]), winner(shape_class=f"{sys.argv[2]}-{i}"))
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
    assert [w.communicate(timeout=300)[0].split()[-1] for w in writers] == ["24"] * 3
    assert [w.returncode for w in writers] == [0, 0, 0]
    for name in "abc":
        assert [recall(path, f"{name}-{i}").point for i in range(25)] == [WON] * 25


def test_a_kill_loses_at_most_the_write_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "winners.db"
    writer = _writer(path, "a", 100_000)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=300)
    assert [recall(path, f"a-{i}").point for i in told] == [WON] * len(told)
    assert remember(path, winner(shape_class="after")) == ""
