"""Output that cannot be written as it is, or that nobody reads: no traceback, whatever the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.each(3)

COMMAND = """# -*- coding: utf-8 -*-
import sys
from tilewright.faces.exits import exit_code, line, open_standards
from tilewright.faces.printing import Shown, put, say
from rich.table import Table

def run():
    say(False)("µs \\ud800 → ≤ \\x1b[31m")
    table = Table("größe", "→")
    for _ in range(2000):
        table.add_row("≤ µ", "x" * 40)
    put(Shown(object={"a": "→"}, drawn=("≤ \\ud800", table)), as_json=False)
    line("ends \\ud800 ≤", 0)
    return 0

open_standards()
sys.exit(exit_code(run))
"""


def run(shell: str, **environment: str) -> tuple[int, str]:
    command = f"{sys.executable} - {shell}" if "<&-" not in shell else f'{sys.executable} -c "$SCRIPT" {shell}'
    env = os.environ | {"SCRIPT": COMMAND, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | environment
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=env, input=COMMAND.encode(), capture_output=True, check=False
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp1252", "utf-16"])
def test_any_encoding_is_written_to(encoding: str) -> None:
    code, said = run("", PYTHONIOENCODING=encoding)
    assert code == 0 and "Traceback" not in said and "Error" not in said


def test_the_plainest_locale_is_written_to() -> None:
    code, said = run("", LC_ALL="C", LANG="C")
    assert code == 0 and "Traceback" not in said


@pytest.mark.parametrize(
    ("shell", "codes"),
    [("| head -1", (141, 0)), (">&-", (0,)), ("2>&-", (0,)), (">&- 2>&- <&-", (0,)), ("2>&1 | head -1", (141, 0)),
     ("> /dev/full", (2,)), ("2> /dev/full", (0,))],
)  # fmt: skip
def test_nobody_reads(shell: str, codes: tuple[int, ...]) -> None:
    code, said = run(shell)
    assert code in codes, said
    assert "Traceback" not in said and "Exception ignored" not in said


def test_a_command_whose_reader_has_gone(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tilewright --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() in ("0", "141") and done.stderr == ""
