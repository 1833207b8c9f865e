"""Problem files are read without being run; every fault in them is one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.edges.problems import read_problem
from tilewright.facts.errors import UserError

GOOD = """
raise_if_run = 1 / 0 if False else None
SIZE = 4 * 1024
class Model: pass
def get_inputs(n=1): return []
def get_init_inputs(n=1): return []
CASES = [dict(n=SIZE), {"n": 3, "deep": [1, 2.5, None, True, "x", -1]}]
CPU_CASES = [{"n": 2**5}]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "problem.py"
    path.write_text(text)
    return path


def test_cases_are_read_for_each_target(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    cuda = [json.loads(c) for c in read_problem(path, target="cuda").cases]
    assert cuda == [{"n": 4096}, {"n": 3, "deep": [1, 2.5, None, True, "x", -1]}]
    assert [json.loads(c) for c in read_problem(path, target="cpu").cases] == [{"n": 32}]


def test_kernelbench_files_have_one_empty_case(tmp_path: Path) -> None:
    text = "class Model: pass\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
    assert read_problem(written(tmp_path, text), target="cuda").cases == ("{}",)


def test_nothing_is_run(tmp_path: Path) -> None:
    read_problem(written(tmp_path, GOOD + "\nraise SystemExit('run!')\n"), target="cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", "not Python, line 1"),
        ("class Model: pass\ndef get_inputs(): ...", "no `get_init_inputs`"),
        ("def get_inputs(): ...\ndef get_init_inputs(): ...", "no `Model`"),
        (GOOD.replace("[{", "[f(),{"), "CPU_CASES must be a list of dicts made of literals"),
        (GOOD.replace('[{"n": 2**5}]', "[]"), "CPU_CASES must be a non-empty list of dicts"),
    ],
)
def test_faults_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_problem(written(tmp_path, text), target="cpu")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "problem.py") in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_problem(tmp_path / "none.py", target="cpu")
    with pytest.raises(UserError, match="tilewright bench"):
        read_problem(tmp_path, target="cpu")
