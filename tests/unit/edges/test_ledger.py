"""The journal: durable, append-only, one writer, and readable errors for what is no journal."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.facts import PROBLEM
from tilewright.edges.ledger import Ledger
from tilewright.faces.exits import exit_code
from tilewright.facts.errors import UserError
from tilewright.facts.move import Stop, Try
from tilewright.facts.outcome import Failure, Station
from tilewright.facts.pattern import Choice
from tilewright.facts.run import Request
from tilewright.facts.space import point

MOVE = Try(what=(Choice(pattern="fused_0", point=point(unroll=2, threads=128)),), why="ünïcode")
OUTCOME = Failure(stage="check", reason="wrong_values", summary="off by 1e-3", excerpt="x" * 4096)


def test_what_was_appended_is_read_back_equal(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.db") as ledger:
        held = (Station(name="tuning", seconds=0.5), Station(name="timing", seconds=0.75))
        made = [
            ledger.append(MOVE, OUTCOME, wall_s=1.5, held=held),
            ledger.append(Stop(best=None, why="end"), None, wall_s=0.0),
        ]
    with Ledger(tmp_path / "run.db", readonly=True) as ledger:
        assert list(ledger.events()) == made
        assert (made[0].move, made[0].outcome, made[0].held, made[1].held) == (MOVE, OUTCOME, held, ())


def test_equal_texts_are_stored_once(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.db") as ledger:
        for _ in range(5):
            ledger.append(MOVE, OUTCOME, wall_s=0.0)
    count = sqlite3.connect(tmp_path / "run.db").execute("SELECT count(*) FROM text").fetchone()[0]
    assert count == 2


@pytest.mark.parametrize("statement", ["DELETE FROM event", "UPDATE event SET wall_s = 0"])
def test_events_can_be_neither_changed_nor_removed(tmp_path: Path, statement: str) -> None:
    with Ledger(tmp_path / "run.db") as ledger:
        ledger.append(MOVE, OUTCOME, wall_s=1.0)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        sqlite3.connect(tmp_path / "run.db").execute(statement)


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.db") as ledger:
        ledger.append(MOVE, OUTCOME, wall_s=1.0)
        with pytest.raises(UserError, match="another process"):
            Ledger(tmp_path / "run.db")
        with Ledger(tmp_path / "run.db", readonly=True) as reader:
            assert len(reader.events()) == 1


def test_no_journal_and_a_broken_one_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run here"):
        Ledger(tmp_path / "run.db", readonly=True)
    (tmp_path / "run.db").write_bytes(b"not a database, but long enough to be looked at" * 50)
    with pytest.raises(UserError, match="cannot be read as a journal"):
        Ledger(tmp_path / "run.db")


def test_a_database_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "run.db") as theirs:
        theirs.execute("CREATE TABLE weather (day TEXT)")
    with pytest.raises(UserError, match="is no journal"):
        Ledger(tmp_path / "run.db")
    tables = sqlite3.connect(tmp_path / "run.db").execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("weather",)]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, why in (("file", "file exists"), ("file/run", "not a directory"), ("x" * 300, "file name too long")):
        with pytest.raises(UserError, match=f"{folder}: can't be written .{why}.; choose another --out"):
            Ledger(tmp_path / folder / "run.db")


def test_only_what_has_no_outcomes_begins_anew(tmp_path: Path) -> None:
    first = Request(run="a", problem=PROBLEM, strategy="catalog", seed=0, budget_s=1.0)
    with Ledger(tmp_path / "run.db") as ledger:
        ledger.write(first)
        ledger.begin_anew()
        assert ledger.request() is None
        ledger.write(first)
        ledger.append(MOVE, OUTCOME, wall_s=1.0)
        ledger.begin_anew()
        assert ledger.request() == first


def test_a_writer_killed_between_appends_leaves_whole_events(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tilewright.edges.ledger import Ledger\n"
        "from tilewright.facts.move import Try\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "for i in range(10**6):\n"
        "    ledger.append(Try(what=(), why=str(i)), None, wall_s=0.0); print(i, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run.db")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    seen = [int(child.stdout.readline()) for _ in range(20)]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with Ledger(tmp_path / "run.db") as ledger:
        events = ledger.events()
    assert [e.move.why for e in events] == [str(i) for i in range(len(events))]
    assert len(events) > seen[-1]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_journal_that_is_taken_away_is_not_written_to(tmp_path: Path, how: str) -> None:
    """SQLite would go on with the file that nobody sees any more."""
    with Ledger(tmp_path / "run" / "run.db") as ledger:
        shutil.rmtree(tmp_path / "run")
        if how == "replaced":
            Ledger(tmp_path / "run" / "run.db").close()
        with pytest.raises(FileNotFoundError) as gone:
            ledger.append(Stop(best=None, why="x"), None, wall_s=0.0)
    assert gone.value.filename == str(tmp_path / "run" / "run.db") or gone.value.filename == tmp_path / "run" / "run.db"
    assert exit_code(lambda: (_ for _ in ()).throw(gone.value)) == 2
