"""A problem that reads the environment: told of where its cells would see another, and passed what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.command import in_process
from tilewright.edges.problems import environment_read
from tilewright.faces import config
from tilewright.faces.reading import problem_of
from tilewright.facts.errors import HarnessError, UserError
from tilewright.judge import cell_process as module
from tilewright.judge.client import Cell, CellPlan

GOOD = "import os\nclass Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


@pytest.mark.parametrize(
    ("text", "names", "others"),
    [
        ("os.environ['A']", ("A",), False), ("os.environ.get('A', 'B')", ("A",), False),
        ("os.getenv('A')", ("A",), False),
        ("int(os.getenv('B') or os.environ['A'])", ("A", "B"), False), ("'A' in os.environ", ("A",), False),
        ("os.environ.setdefault('A', '1')", ("A",), False), ("os.getenvb(b'A')", ("A",), False),
        ("from os import environ as e, getenv\ne['A'], getenv('B')", ("A", "B"), False),
        ("os.environ['A'] = '1'", (), False), ("del os.environ['A']", (), False), ("environ['A']", (), False),
        ("os.getenv(name)", (), True), ("dict(os.environ)", (), True), ("os.environ[f'{x}']", (), True),
        ("f = os.getenv\nf('A')", (), True), ("import os as o\no.getenv('A')", ("A",), False), ("def f(:", (), False),
    ],
)  # fmt: skip
def test_what_a_text_reads(text: str, names: tuple[str, ...], others: bool) -> None:
    found = environment_read(text)
    assert (found.names, found.others) == (names, others)


def problem(tmp_path: Path, text: str, *env: str) -> tuple[Any, list[str]]:
    (tmp_path / "p.py").write_text(GOOD + text)
    said: list[str] = []
    return problem_of(tmp_path / "p.py", target="cpu", env=env, warn=said.append), said


def test_a_variable_that_is_set_here_and_that_cells_lack_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIDTH", "7")
    monkeypatch.delenv("DEPTH", raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")  # cells have it, too
    text = "W = os.getenv('WIDTH'), os.getenv('DEPTH'), os.getenv('LANG')\n"
    plain, said = problem(tmp_path, text)
    assert plain.environment == () and len(said) == 1
    assert "reads WIDTH from the environment" in said[0] and said[0].endswith("--env WIDTH")
    passed, said = problem(tmp_path, text, "WIDTH")
    assert (passed.environment, said) == ((("WIDTH", "7"),), [])
    assert passed.digest != plain.digest
    monkeypatch.setenv("TILEWRIGHT_ENV", "WIDTH")
    assert problem(tmp_path, text)[0] == passed
    assert "by names that can't be told" in problem(tmp_path, "os.getenv(x)")[1][0]


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "PYTHONPATH", "OMP_NUM_THREADS", "not-a-name", "", "A" * 300, "UNSET"]
)
def test_a_variable_that_can_not_be_passed_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="--env"):
        config.environment([name])
    (tmp_path / "p.py").write_text(GOOD)
    for command in ("optimize p.py", "evaluate p.py p.py", "bench .", "audit p.py", "audit .", "discover p.py",
                    "discover .", "tune p.py", "profile p.py", "compare p.py --strategies catalog", "mcp"):  # fmt: skip
        code, out, err = in_process(*command.split(), "--target", "cpu", "--env", name, cwd=tmp_path)
        assert (code, out) == (2, "") and "--env" in err, (command, err)


def test_the_cells_of_the_problem_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    class Server:
        def start(self, folder: Path, environment: dict[str, str], *_: object) -> Any:
            seen.append(environment)
            raise HarnessError("enough")

    monkeypatch.setattr(module, "server_for", lambda common, **_: Server())
    plan = CellPlan(
        name="c",
        device="cpu",
        folder=tmp_path / "c",
        memory_bytes=0,
        variables=(("WIDTH", "7"), ("HOME", "/elsewhere")),
    )
    with pytest.raises(HarnessError, match="enough"):
        Cell(plan)
    assert seen[0]["WIDTH"] == "7" and seen[0]["HOME"].startswith(str(tmp_path))
