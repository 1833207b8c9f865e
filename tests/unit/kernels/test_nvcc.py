"""Libraries by nvcc: built once for a text, in parallel, and ahead of a candidate only where this run wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.facts.candidate import LIBRARY, Candidate, SourceFile
from tilewright.kernels import nvcc
from tilewright.run.ahead import Objects, built_by_nvcc

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo release 13.0; exit 0; fi
echo x >> "$(dirname "$0")/calls"
while [ $# -gt 1 ]; do [ "$1" = -o ] && target=$2; shift; done
grep -q wrong "$1" && { echo "$1: error: wrong" >&2; exit 2; }
cp "$1" "$target"
"""


@pytest.fixture(autouse=True)
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that copies its source; its calls are counted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvcc").write_text(COMPILER)
    (folder / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    nvcc._compiler.cache_clear()
    return folder / "calls"


def test_a_text_is_built_once_and_found_in_any_of_the_places(tmp_path: Path, compiler: Path) -> None:
    sources = [tmp_path / f"{name}.cu" for name in "abc"]
    for source in sources:
        source.write_text("wrong" if source.stem == "c" else source.stem)
    first, second = tmp_path / "first", tmp_path / "second"
    a, b, c = nvcc.libraries(sources, "/none", [first], jobs=2)
    assert isinstance(a, Path) and a.read_text() == "a" and isinstance(b, Path) and b.parent == first
    assert isinstance(c, nvcc.NotBuilt) and "error: wrong" in str(c)
    assert nvcc.libraries(sources[:2], "/none", [second, first], jobs=2) == [a, b]
    assert len(compiler.read_text().split()) == 3 and not second.exists()
    sources[0].write_text("another")
    assert nvcc.libraries(sources[:1], "/none", [second, first], jobs=1) != [a]


def test_only_what_this_run_wrote_is_built_ahead(tmp_path: Path, compiler: Path) -> None:
    def candidate(text: str) -> Candidate:
        return Candidate(files=(SourceFile(path="kernel_0.cu", text=text),), language=LIBRARY)

    ours, theirs, objects = candidate("ours"), candidate("theirs"), Objects()
    objects.ours.add(ours.id)
    for _ in range(2):
        (built,) = built_by_nvcc([ours, theirs], headers="", folder=tmp_path / "kept", jobs=2, objects=objects)
        assert built.read_text() == "ours" and built.parent.parent == tmp_path / "kept"
    assert len(compiler.read_text().split()) == 1
    (tmp_path / "cutlass").mkdir()
    (tmp_path / "cutlass" / "version.h").write_text("4.7")
    (other,) = built_by_nvcc([ours], headers=str(tmp_path), folder=tmp_path / "kept", jobs=1, objects=objects)
    assert len(compiler.read_text().split()) == 2 and other.parent != built.parent, "other headers, another library"
    (tmp_path / "kernel_0.cu").write_text("ours")
    (tmp_path / "bin" / "nvcc").unlink()
    nvcc._compiler.cache_clear()
    assert nvcc.libraries([tmp_path / "kernel_0.cu"], "/not/seen", [built.parent], jobs=1) == [built], "in a cell"
