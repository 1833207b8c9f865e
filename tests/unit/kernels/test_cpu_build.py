"""Building for the CPU when something is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.kernels.cpu import build as building


@pytest.fixture(autouse=True)
def _forget_the_compiler() -> object:
    building._compiler.cache_clear()
    yield
    building._compiler.cache_clear()


def test_no_compiler_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "a.cpp").write_text("")
    with pytest.raises(building.BuildError, match=r"^no C\+\+ compiler: install g\+\+"):
        building.build(tmp_path / "a.cpp", {})


def test_a_source_that_does_not_compile_shows_what_the_compiler_said(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int f() { return nothing_of_this_name; }")
    with pytest.raises(building.BuildError, match="nothing_of_this_name"):
        building.build(tmp_path / "a.cpp", {})
    assert not list((tmp_path / "build").iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_builds_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "candidate"
    folder.mkdir()
    (folder / "a.cpp").write_text("int f() { return 1; }")
    folder.chmod(0o555)
    assert building.build(folder / "a.cpp", {}).parent == tmp_path / "cache" / "tilewright" / "cpu"
    folder.chmod(0o755)


def test_a_file_in_the_way_of_the_build_folder_builds_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "build").write_text("not a folder")
    (tmp_path / "a.cpp").write_text("int f() { return 1; }")
    assert building.build(tmp_path / "a.cpp", {}).parent == tmp_path / "cache" / "tilewright" / "cpu"
