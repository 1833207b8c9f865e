"""Files of compiled kernels: whole or not there, in a folder of this user's, and pruned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.kernels import store


def test_a_folder_for_temporary_files_that_others_could_fill_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "file").write_text("")
    own = tmp_path / f"tilewright-cpu-{os.getuid()}"
    assert store.writable((tmp_path / "file",), "cpu") == own and own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert store.writable((tmp_path / "file",), "cpu") is None


def test_what_is_written_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        store.keep(tmp_path, "a.o", half)
    assert list(tmp_path.iterdir()) == []
    kept = store.keep(tmp_path, "a.o", lambda path: path.write_bytes(b"whole") and None)
    assert kept.read_bytes() == b"whole" and list(tmp_path.iterdir()) == [kept]


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    for age, name in enumerate("abcd"):
        (tmp_path / f"{name}.o").write_bytes(bytes(100))
        os.utime(tmp_path / f"{name}.o", (1000 + age, 1000 + age))
    (tmp_path / "other.so").write_bytes(bytes(10000))
    assert store.found((tmp_path / "none", tmp_path), "a.o") == tmp_path / "a.o", "and used by that"
    store.keep(tmp_path, "new.o", lambda path: path.write_bytes(bytes(100)) and None, most_bytes=350)
    assert {p.name for p in tmp_path.iterdir()} == {"a.o", "d.o", "new.o", "other.so"}
    store.keep(tmp_path, "large.o", lambda path: path.write_bytes(bytes(1000)) and None, most_bytes=350)
    assert {p.name for p in tmp_path.iterdir()} == {"large.o", "other.so"}, (
        "what was just made stays, whatever it takes"
    )
