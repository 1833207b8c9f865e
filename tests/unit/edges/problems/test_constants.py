"""A problem file's constants: only those that its cases need, each bounded; every fault is one line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tilewright.edges.problems import read_problem
from tilewright.facts.errors import UserError

PLAIN = "class Model: ...\ndef get_inputs(**k): ...\ndef get_init_inputs(**k): ...\n"
LARGE = [
    "9**9**9", "10**4400", "2**(2**40)", "1 << 10**9", "'a'*10**12", "[0]*10**10", "[[0]*1000]*10**6",
    "0x" + "f" * 5000,
    "(10**300)**2", "10**300*10**300", "b'x'*10**9", "-(10**400)", "'a'*10**6 + 'a'*10**6", "dict(a='x'*10**7)",
]  # fmt: skip
DEEP = ["-" * 5000 + "1", "(" * 5000 + "1" + ")" * 5000, "[" * 900 + "]" * 900, "-" * 400 + "1", "1" + "+1" * 5000,
        "{'a':" * 300 + "1" + "}" * 300, "not " * 3000 + "1"]  # fmt: skip
NOT_CONSTANT = [
    "range(10**12)", "f\"{'a'!r:>{10**9}}\"", "os.environ", "[x for x in y]", "lambda: 1", "A", "[*B]", "{**C}",
    "dict([])", "1 if x else 2", "(y := 3)", "b'a'", "1j", "...", "{(1, 2): 3}", "{1: 2, 'a': 3}", "-'a'", "1/0",
    "[] + 1",
    "2.0**99999", "1 << -1", "'a' * 2.0", "'%d' % 3",
]  # fmt: skip


def read(tmp_path: Path, text: str) -> tuple[str, ...]:
    (tmp_path / "p.py").write_text(text)
    return read_problem(tmp_path / "p.py", target="cpu").cases


@pytest.mark.parametrize("value", [*LARGE, *DEEP, *NOT_CONSTANT], ids=lambda v: v[:24])
@pytest.mark.parametrize("where", ["CASES = [{{'n': {}}}]", "N = {}\nCASES = [dict(n=N)]", "MODE = {}", "CASES = {}"])
def test_what_is_too_large_too_deep_or_no_constant_is_one_line(tmp_path: Path, value: str, where: str) -> None:
    started = time.monotonic()
    text = PLAIN + where.format(value)
    with pytest.raises(UserError) as told:
        read(tmp_path, text)
    assert str(told.value).startswith(f"{tmp_path}/p.py") and len(str(told.value)) < 400
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("value", [*LARGE, *NOT_CONSTANT], ids=lambda v: v[:24])
def test_what_the_cases_do_not_need_is_not_evaluated(tmp_path: Path, value: str) -> None:
    if not value.startswith("0xfff"):
        assert read(tmp_path, PLAIN + f"UNUSED = {value}\nN = 3\nCASES = [{{'n': N}}]") == ('{"n": 3}',)


def test_a_name_means_its_last_assignment_before_where_it_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, PLAIN + "N = 2\nM = N * 2\nN = 5\nCASES = [{'n': N, 'm': M}]") == ('{"m": 4, "n": 5}',)
    assert read(tmp_path, PLAIN + "N: int = 2\nCASES: list = [{'n': N}]\nN = f()") == ('{"n": 2}',)
    with pytest.raises(UserError, match="'f\\(\\)' is not constant"):
        read(tmp_path, PLAIN + "N = 2\nN = f()\nCASES = [{'n': N}]")


@pytest.mark.parametrize(
    "change", ["N += 1", "for N in (1, 2): pass", "if x:\n    N = 3", "N, M = 3, 4", "def N(): ..."]
)
def test_what_is_changed_by_more_than_an_assignment_is_no_constant(tmp_path: Path, change: str) -> None:
    with pytest.raises(UserError, match="'N' is not constant"):
        read(tmp_path, PLAIN + f"N = 2\n{change}\nCASES = [{{'n': N}}]")


def test_too_many_cases(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="10000 are the most"):
        read(tmp_path, PLAIN + "CASES = [{}] * 20000")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "large.py").open("wb") as large:
        large.truncate(5 << 30)
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "utf16.py").write_bytes(PLAIN.encode("utf-16"))
    (tmp_path / "nul.py").write_bytes(PLAIN.encode() + b"\0")
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    names = "pipe.py", "large.py", "loop.py", "utf16.py", "nul.py", "binary.py", "x" * 5000, "a\0b", "none/none.py"
    for name in ("/dev/zero", "/dev/null", "/dev/urandom", *(tmp_path / name for name in names)):
        with pytest.raises(UserError) as told:
            read_problem(Path(name), target="cpu")
        assert "\n" not in str(told.value)


def test_a_mark_of_byte_order_is_none_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_bytes(PLAIN.encode("utf-8-sig"))
    assert read_problem(tmp_path / "p.py", target="cpu").source == PLAIN
