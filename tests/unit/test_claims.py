"""benchmarks/claims.py: what was reached is read from result files."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starved import patient

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "h200"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("claims")


@pytest.fixture
def kernelbench(script: ModuleType) -> ModuleType:
    return importlib.import_module("kernelbench")


@pytest.fixture
def copied(tmp_path: Path, script: ModuleType) -> Path:
    for name in {aim.file for aim in script.AIMS}:
        shutil.copy(RESULTS / name, tmp_path / name)
    return tmp_path


def line_of(script: ModuleType, folder: Path, title: str) -> str:
    (line,) = (line for line in script.table(folder)[0] if line.startswith(title))
    return str(line)


def test_a_result_under_its_aim_is_told_and_ends_in_1(script: ModuleType, copied: Path, capsys: Any) -> None:
    title = "linear layers in training"
    assert "NOT REACHED" not in line_of(script, copied, title)
    result = json.loads((copied / "linear-training.json").read_text())
    for task in result["tasks"]:
        task["us"]["ours"] *= 1.3
    (copied / "linear-training.json").write_text(json.dumps(result))
    assert line_of(script, copied, title).endswith("NOT REACHED")
    sys.argv = ["claims.py", "--results", str(copied)]
    assert script.main() == 1 and "NOT REACHED" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", '{"tasks": []}'])
def test_what_is_missing_or_cut_short_is_not_measured(script: ModuleType, copied: Path, content: str | None) -> None:
    path = copied / "linear-training.json"
    path.unlink() if content is None else path.write_text(content)
    assert "not measured" in line_of(script, copied, "linear layers in training")
    assert "not measured" not in line_of(script, copied, "square of 4096")


def test_a_wrong_task_counts_as_no_gain_and_as_not_right(script: ModuleType, copied: Path) -> None:
    path = copied / "kernelbench-products.json"
    result = json.loads(path.read_text())
    (task,) = (t for t in result["tasks"] if t["problem"].startswith("1_Square"))
    task |= {"status": "failed", "verdict": {"accepted": False, "stage": "checks"}, "ratio": {"eager": None}}
    path.write_text(json.dumps(result))
    figure = next(a for a in script.AIMS if a.title == "of them judged right").figure
    assert figure(result) == ("15 of 16", 15.0)
    assert "not measured" in line_of(script, copied, "square of 4096")


def test_levels_that_were_measured_apart_are_one_file(script: ModuleType) -> None:
    whole = json.loads((RESULTS / "kernelbench-products.json").read_text())
    apart = [
        {
            **whole,
            "command": f"bench level{number}",
            "commit": "new",
            "tasks": script.level(number, whole),
            "runs": None,
        }
        for number in (1, 2)
    ]
    both = script.of_both(*apart)
    assert [len(script.level(number, both)) for number in (1, 2)] == [16, 37]
    assert both["summary"]["geomean_eager"] == pytest.approx(whole["summary"]["geomean_eager"], rel=1e-3)


def test_every_task_of_transformers_counts(script: ModuleType) -> None:
    tables = importlib.import_module("tables")
    assert (len(list(tables.transformers())), len(list(tables.layers()))) == (script.BARE, script.FUSED)


def test_what_measures_is_there(script: ModuleType, tmp_path: Path) -> None:
    made = script.parts(tmp_path / "kb", tmp_path)
    assert set(made) | {script.PRODUCTS} == {aim.file for aim in script.AIMS} | {"level1.json", "level2.json"}
    for command in made.values():
        assert command[1] == "-m" or Path(command[1]).is_file()


def test_parts_that_came_to_their_end_are_not_made_again(
    kernelbench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is a command that gets `--json FILE`; the second of these fails until a file is there."""
    made = "import sys; open(sys.argv[2], 'a').write('.')"
    fails = f"{made}; import os; sys.exit(not os.path.exists({str(tmp_path / 'go')!r}))"
    parts = {"a.json": [sys.executable, "-c", made], "b.json": [sys.executable, "-c", fails]}
    for _ in range(2):
        kernelbench.measure(parts, tmp_path, 60.0)
    (tmp_path / "go").touch()
    for _ in range(2):
        kernelbench.measure(parts, tmp_path, 60.0)
    assert [(tmp_path / name).read_text() for name in parts] == [".", "..."]
    monkeypatch.setattr(kernelbench, "commit", lambda: "another")
    kernelbench.measure(parts, tmp_path, 60.0)
    assert [(tmp_path / name).read_text() for name in parts] == ["..", "...."]


@pytest.mark.parametrize("leaves", ["trap '' INT", "trap 'exit 0' INT"], ids=["deaf", "leaves its child"])
def test_a_part_that_takes_too_long_ends_with_all_it_began(
    kernelbench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    monkeypatch.setattr(kernelbench, "LEAVING_S", 0.5)
    begun = tmp_path / "child"
    deaf = "trap '' INT; while :; do sleep 1; done"
    endless = f'sh -c "{deaf}" & echo $! > {begun}; {leaves}; while :; do sleep 0.1; done'
    with open(tmp_path / "log", "w") as log:
        assert kernelbench.ended_by(["sh", "-c", endless], time.monotonic() + patient(2.0), log) is None
    state = Path(f"/proc/{begun.read_text().strip()}/stat")
    end = time.monotonic() + 20.0
    while not is_gone(state):
        assert time.monotonic() < end, "what a part began runs on"
        time.sleep(0.01)


def is_gone(state: Path) -> bool:
    """What has got SIGKILL is there until it is next given a processor, and then until somebody has waited for it."""
    try:
        return state.read_text().split()[2] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
