"""`clean` removes what is old and ours and not in use, and says the same before; `logs`; how much a command tells."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.command import in_process, tilewright
from fakes.runs import IMPROVED, NOTHING, context
from fakes.sites import written_run
from tilewright.edges.in_use import hold
from tilewright.faces import cleaning, latest
from tilewright.faces.cleaning import CleaningBounds, Removable, due

DAY = 86400.0
NOW = 1e9


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def aged(path: Path, days: float) -> Path:
    then = time.time() - days * DAY
    for found in (path, *path.rglob("*")):
        os.utime(found, (then, then))
    return path


def kernel(cache: Path, name: str, *, days: float, size: int = 1000, kind: str = "libraries") -> Path:
    path = cache / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return aged(path, days)


def run(root: Path, name: str, *, days: float, events: Any = IMPROVED) -> Path:
    folder = written_run(root / "runs" / name, context(name, run=name), events)
    (folder / "work").mkdir()
    (folder / "work" / "built.so").write_bytes(b"x" * 5000)
    (folder / "report.html").write_text("drawn")
    return aged(folder, days)


def cleaned(tmp_path: Path, *args: object) -> dict[str, Any]:
    """What the command does, which is what it said before that it would."""
    dry = json.loads(tilewright("clean", *args, "--dry-run", "--json", cwd=tmp_path))
    done: dict[str, Any] = json.loads(tilewright("clean", *args, "--json", cwd=tmp_path))
    assert {**dry, "dry_run": False} == done
    assert not any(Path(tmp_path, item["path"]).exists() for item in done["removed"])
    return done


def names(told: dict[str, Any], key: str = "removed") -> set[str]:
    return {Path(item["path"]).name for item in told[key]}


def test_old_kernels_and_modules_go_and_what_was_learnt_stays(tmp_path: Path, cache: Path) -> None:
    old = kernel(cache, "fused_0-0123456789abcdef.so", days=40)
    kernel(cache, "fused_1-0123456789abcdef.so", days=3)
    kernel(cache, "0123456789abcdef.o", days=50, kind="cuda")
    for name in ("winners.db", "machine-cpu-08af7f9bf319.json", "baselines.json"):
        kernel(cache, name, days=400, kind=".")
    kernel(cache, "notes.so", days=400)  # of somebody else
    module = cache / "modules" / "0123456789abcdef"
    kernel(module, "model.py", days=40, kind=".")
    aged(module, 40)
    told = cleaned(tmp_path)
    assert names(told) == {old.name, "0123456789abcdef.o", module.name}
    left = {p.name for p in cache.rglob("*") if p.is_file()}
    assert left == {
        "fused_1-0123456789abcdef.so",
        "winners.db",
        "machine-cpu-08af7f9bf319.json",
        "baselines.json",
        "notes.so",
    }


def test_what_is_beyond_a_size_goes_the_oldest_first() -> None:
    items = [
        Removable(what="kernels", path=Path(str(n)), size_bytes=10, used_unix_s=NOW - n * DAY) for n in range(1, 6)
    ]
    by_size = due(items, CleaningBounds(older_s=None, keep_bytes=25), now_unix_s=NOW)
    assert [str(item.path) for item in by_size] == ["5", "4", "3"]
    by_both = due(items, CleaningBounds(older_s=1.5 * DAY, keep_bytes=45), now_unix_s=NOW)
    assert [str(item.path) for item in by_both] == ["5", "4", "3", "2"]
    assert due(items, CleaningBounds(older_s=None, keep_bytes=None), now_unix_s=NOW) == ()


def test_a_kernel_that_was_just_used_stays_whatever_the_size(tmp_path: Path, cache: Path) -> None:
    kernel(cache, "fused_0-0123456789abcdef.so", days=0)
    told = cleaned(tmp_path, "kernels", "--keep", "10B")
    assert told["removed"] == [] and told["stays"][0]["why"] == "was used within the hour"


@pytest.mark.usefixtures("cache")
def test_old_runs_go_and_those_that_are_young_unfinished_or_hold_more_stay(tmp_path: Path) -> None:
    run(tmp_path, "old", days=40)
    run(tmp_path, "young", days=3)
    run(tmp_path, "unfinished", days=40, events=IMPROVED[:2])
    (run(tmp_path, "annotated", days=40) / "thesis.txt").write_text("mine")
    damaged = run(tmp_path, "damaged", days=40) / "run.db"
    damaged.write_bytes(b"no journal at all" * 100)
    aged(damaged, 40)
    (tmp_path / "runs" / "no_run").mkdir()
    told = cleaned(tmp_path, "runs")
    assert names(told) == {"old"}
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"young", "unfinished", "annotated", "damaged", "no_run"}
    why = {Path(item["path"]).name: item["why"] for item in told["stays"]}
    assert why["annotated"] == "holds 'thesis.txt', which no run leaves there"
    assert "--unfinished" in why["unfinished"] and why["damaged"] == "its journal can't be read"
    assert names(cleaned(tmp_path, "runs", "--unfinished")) == {"unfinished"}


@pytest.mark.usefixtures("cache")
def test_of_a_run_the_builds_alone(tmp_path: Path) -> None:
    folder = run(tmp_path, "old", days=40, events=NOTHING)
    told = cleaned(tmp_path, "builds", "--older", "1h")
    assert told["bytes"] == 5000 and names(told) == {"work"}
    assert (folder / "run.db").is_file() and (folder / "report.html").is_file()


@pytest.mark.usefixtures("cache")
def test_a_run_that_is_written_to_stays(tmp_path: Path) -> None:
    folder = run(tmp_path, "old", days=40)
    with (folder / "run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = cleaned(tmp_path, "runs")
    assert told["removed"] == [] and told["stays"][0]["why"] == "is in use"
    assert names(cleaned(tmp_path, "runs")) == {"old"}


def test_what_another_process_works_from_stays_until_it_ends(tmp_path: Path, cache: Path) -> None:
    module = cache / "modules" / "0123456789abcdef"
    kernel(module, "model.py", days=40, kind=".")
    aged(module, 40)
    code = f"from pathlib import Path; from tilewright.edges.in_use import hold; hold(Path({str(module)!r}))"
    code += "; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "1\n"
        told = cleaned(tmp_path, "modules")
        assert told["removed"] == [] and told["stays"][0]["why"] == "is in use"
        holder.communicate("\n")
    assert names(cleaned(tmp_path, "modules")) == {module.name}


def test_who_imports_a_candidate_holds_it(tmp_path: Path) -> None:
    from tilewright.faces.live import loaded

    (tmp_path / "model.py").write_text("x = 1\n")
    loaded(tmp_path)
    with cleaning.alone(tmp_path) as free:
        assert not free
    hold(tmp_path)  # again: no second descriptor, nothing raised


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["winners"], "clean 'winners': there is none; name runs, builds, kernels, modules"),
        (["--older", "soon"], "--older: 'soon' is not a duration"),
        (["--keep", "much"], "--keep: 'much' is not a size; write 500MB or 2GB"),
        (["runs", "--runs", "none"], "none: no such folder"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_mistakes_are_one_line(tmp_path: Path, args: list[str], said: str) -> None:
    code, out, err = in_process("clean", *args, cwd=tmp_path)
    assert (code, out) == (2, "") and said in err and len(err.strip().splitlines()) == 1


def test_the_latest_run_is_told_of(tmp_path: Path) -> None:
    written_run(tmp_path / "runs" / "a" / "first", context("first", run="r1"), IMPROVED)
    aged(tmp_path / "runs" / "a", 1)
    written_run(tmp_path / "runs" / "second", context("second", run="r2"), IMPROVED[:2])
    told = json.loads(tilewright("logs", "--tail", 1, "--json", cwd=tmp_path))
    assert (told["run"], told["journal"], told["state"]) == ("runs/second", "runs/second/run.db", "not ended")
    assert [step["step"] for step in told["steps"]] == [1]
    text = tilewright("logs", "runs/a", cwd=tmp_path)
    assert "runs/a/first (ended, 4 steps)" in text and "1 pattern(s) fused" in text
    assert "no run there" in in_process("logs", "none", cwd=tmp_path)[2]


def test_a_run_is_followed_until_it_ends(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "one", context("one", run="r1"), IMPROVED[:1])
    lines: list[str] = []
    rest = iter(IMPROVED[1:])

    def sleep(_: float) -> None:
        from tilewright.edges.ledger import Ledger

        event = next(rest)
        with Ledger(folder / "run.db") as ledger:
            ledger.append(event.move, event.outcome, wall_s=1.0)

    latest.follow(latest.read(folder), tail=10, put=lines.append, sleep=sleep)
    assert [int(line.split()[0]) for line in lines] == [0, 1, 2, 3]


def test_how_much_a_command_tells(tmp_path: Path) -> None:
    written_run(tmp_path / "runs" / "a", context("a", run="r1"), IMPROVED)
    usual, quiet = (in_process("site", "runs", "--out", "pages", *more, cwd=tmp_path)[2] for more in ([], ["-q"]))
    assert "1 sources" in usual and quiet == ""
    assert in_process("site", "runs", "--out", "pages", "--json", cwd=tmp_path)[2] == ""
    verbose = in_process("site", "runs", "--out", "pages", "--json", "--verbose", cwd=tmp_path)
    assert json.loads(verbose[1]) and " s  1 sources" in verbose[2]
    mistaken = in_process("site", "none", "--verbose", cwd=tmp_path)[2]
    assert "Traceback" in mistaken and mistaken.strip().splitlines()[-1].startswith("tilewright: none: no such folder")
    both = in_process("site", "runs", "--quiet", "--verbose", cwd=tmp_path)
    assert both[0] == 2 and "one of them" in both[2]
    assert "Traceback" not in in_process("site", "none", cwd=tmp_path)[2]  # the next command is as usual


def test_a_shell_completes_commands_and_flags() -> None:
    asked = {"_TILEWRIGHT_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "tilewright cl"}
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'tilewright'; from tilewright.faces.cli import main; main()",
    ]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["clean"], done.stderr
