"""Building for the CPU when something is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.kernels.cpu import build as building


@pytest.fixture(autouse=True)
def _forget_the_compiler() -> object:
    cached = (building._identity, building._processor)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


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


def key(folder: Path, *, text: str = "int f();", compiler: str = "", arguments: tuple[str, ...] = ("-O3",)) -> str:
    (folder / "a.cpp").write_text(text)
    return building._key(folder / "a.cpp", compiler or building._compiler(), arguments)


def test_the_key_holds_all_that_can_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = key(tmp_path)
    assert first == key(tmp_path), "and nothing else"
    seen = {first, key(tmp_path, text="int g();"), key(tmp_path, arguments=("-O2",))}
    real = building._compiler()
    for script in ("#!/bin/sh\necho one 12.2\n", "#!/bin/sh\necho one 12.3\n", "#!/bin/sh\n\necho one 12.3\n"):
        building._identity.cache_clear()
        other = tmp_path / "g++"
        other.write_text(script)
        other.chmod(0o755)
        seen.add(key(tmp_path, compiler=str(other)))
    (tmp_path / "moved").mkdir()
    seen.add(key(tmp_path, compiler=str(other.rename(tmp_path / "moved" / "g++"))))
    for name in ("CPATH", "GCC_EXEC_PREFIX"):
        monkeypatch.setenv(name, "/elsewhere")
        seen.add(key(tmp_path, compiler=real))
        monkeypatch.delenv(name)
    monkeypatch.setattr(building.tvm_ffi, "__version__", "0")
    seen.add(key(tmp_path))
    monkeypatch.undo()
    monkeypatch.setattr(building, "_processor", lambda: "flags: avx9")
    seen.add(key(tmp_path))
    monkeypatch.undo()
    assert len(seen) == 11


def test_the_key_holds_the_headers_that_are_included_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tmp_path / "kernels"
    (headers / "gemm").mkdir(parents=True)
    monkeypatch.setattr(building, "_HERE", headers)
    for name, text in (("gemm/product.h", '#include "entry.h"\n'), ("entry.h", ""), ("scan.h", "")):
        (headers / name).write_text(text)
    including = '#include <vector>\n#include "gemm/product.h"\n'
    before = key(tmp_path, text=including)
    (headers / "scan.h").write_text("// another")
    assert key(tmp_path, text=including) == before
    (headers / "entry.h").write_text("// another")
    assert key(tmp_path, text=including) != before


def test_what_cannot_be_fingerprinted_is_never_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert building._identity("/nowhere/g++") == ""
    (tmp_path / "mute").write_text("#!/bin/sh\n")
    (tmp_path / "mute").chmod(0o755)
    assert building._identity(str(tmp_path / "mute")) == "", "it says nothing"
    assert key(tmp_path, compiler="/nowhere/g++") != key(tmp_path, compiler="/nowhere/g++")
    monkeypatch.setattr(building, "_processor", lambda: "")
    assert key(tmp_path) != key(tmp_path)


LIBRARY = 'extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void*, void*, int, void*) { return 0; }'


def test_a_kept_library_that_cannot_be_loaded_is_built_once_more(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(LIBRARY)
    library = building.build(tmp_path / "a.cpp", {})
    whole = library.read_bytes()
    assert building.build(tmp_path / "a.cpp", {}) == library, "found again"
    library.write_bytes(b"")
    assert callable(building.load(tmp_path / "a.cpp", {}))
    assert len(library.read_bytes()) == len(whole)
