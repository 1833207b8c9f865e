"""Kernels kept between runs of the tests: none that is not whole is found, and none that could be another."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import kept

FAKE = """#!/bin/bash
echo "$@" >> {log}
out=${{@: -1}}
[ $# = 1 ] || echo "made of $(cat {source})" > "$out"
"""
Compile = Callable[..., str]


def test_what_was_cut_short_changed_or_put_under_another_name_is_not_found(tmp_path: Path) -> None:
    kept.keep(tmp_path, "a.so", b"a kernel")
    assert kept.found(tmp_path, "a.so") == b"a kernel" and [p.name for p in tmp_path.iterdir()] == ["a.so"]
    whole = (tmp_path / "a.so").read_bytes()
    (tmp_path / "b.so").write_bytes(whole)
    assert kept.found(tmp_path, "b.so") is None
    for spoilt in (whole[:-1], b"b" + whole[1:], b"", whole + b"\0"):
        (tmp_path / "a.so").write_bytes(spoilt)
        assert kept.found(tmp_path, "a.so") is None


def test_the_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kept.WHERE, str(tmp_path / "mine"))
    assert kept.folder() == tmp_path / "mine" and (tmp_path / "mine").stat().st_mode & 0o077 == 0
    (tmp_path / "mine").chmod(0o777)
    assert kept.folder() is None, "others could put kernels there"
    monkeypatch.setenv(kept.WHERE, "")
    assert kept.folder() is None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    for name in "abc":
        kept.keep(tmp_path, name, bytes(1000))
    kept.found(tmp_path, "a")
    kept.prune(tmp_path, most_bytes=2500)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c"]


@pytest.fixture
def compile_(tmp_path: Path) -> Compile:
    """Compiles one.cpp with these flags; what the compiler made, and "again" where it was asked."""
    for place in ("kept", "headers", "elsewhere"):
        (tmp_path / place).mkdir()
    (tmp_path / "headers" / "vec.h").write_text("// a header")
    source, log, real = tmp_path / "one.cpp", tmp_path / "log", tmp_path / "real"
    source.write_text("one")
    real.write_text(FAKE.format(log=log, source=source))
    real.chmod(0o755)
    script = kept.cpp_compiler(tmp_path / "g++", str(real), tmp_path / "kept")

    def compile_(*flags: str, headers: str = "headers", out: str = "one.so") -> str:
        log.write_text("")
        command = [str(script), *flags, "-shared", f"-I{tmp_path / headers}", str(source), "-o", str(tmp_path / out)]
        subprocess.run(command, check=True)
        assert (tmp_path / out).read_text() == f"made of {source.read_text()}\n"
        return "compiled" if log.read_text() else "found"

    return compile_


def test_all_that_can_change_a_library_counts(
    compile_: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (compile_("-O3"), compile_("-O3")) == ("compiled", "found")
    assert compile_("-O3", out="elsewhere/two.so") == "found", "where it goes is no part of it"
    assert compile_("-O2") == "compiled"
    (tmp_path / "headers" / "vec.h").write_text("// another header")
    assert (compile_("-O3"), compile_("-O3")) == ("compiled", "found")
    (tmp_path / "elsewhere" / "vec.h").write_text("// another header")
    assert compile_("-O3", headers="elsewhere") == "compiled", "two.so lies there, too"
    (tmp_path / "one.cpp").write_text("two")
    assert compile_("-O3") == "compiled"
    for name in ("CPATH", "TESTS_IN_HASTE"):
        monkeypatch.setenv(name, "1")
        assert (compile_("-O3"), compile_("-O3")) == ("compiled", "found")
    other = kept.cpp_compiler(tmp_path / "g++", str(tmp_path / "real"), tmp_path / "kept")
    other.write_text(other.read_text().replace("toolchain='", "toolchain='another "))
    assert compile_("-O3") == "compiled"


def test_what_is_spoilt_is_compiled_again_and_mended(compile_: Compile, tmp_path: Path) -> None:
    compile_()
    (library,) = (tmp_path / "kept").iterdir()
    whole = library.read_bytes()
    library.write_bytes(whole.replace(b"one", b"two"))
    assert compile_() == "compiled" and library.read_bytes() == whole


@pytest.mark.slow
def test_passes_run_once_for_the_same_mlir_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found exports the same object, with the same PTX and cubin beside it."""
    from cutlass.base_dsl.compiler import Compiler

    from tilewright.kernels.cuda.gemm.fp32.split import Split, SplitPlan
    from tilewright.kernels.cuda.gemm.host.compiling import compile_split

    ran: list[str] = []
    real = getattr(Compiler.compile, "passes", Compiler.compile)

    def counted(self: object, module: object, pipeline: str, *args: object, **named: object) -> object:
        ran.append(pipeline)
        return real(self, module, pipeline, *args, **named)

    monkeypatch.setattr(Compiler, "compile", counted)
    kept.keep_cute(tmp_path / "kept")
    (tmp_path / "kept").mkdir()

    def compiled(name: str, chunk: int = 64, keep: str = "--keep-ptx --keep-cubin") -> tuple[bytes, ...]:
        (tmp_path / name).mkdir()
        split = Split(SplitPlan.for_chunk(major="k", wide=True, chunk=chunk))
        launch = compile_split(split, options=f"{keep} --dump-dir={tmp_path / name}".strip())
        launch.export_to_c(str(tmp_path / name / "x.o"), "launch")  # type: ignore[attr-defined]
        return (tmp_path / name / "x.o").read_bytes(), launch.artifacts.PTX, launch.artifacts.CUBIN  # type: ignore[attr-defined]

    first = compiled("first")
    assert first[1] and first[2] and compiled("second") == first and len(ran) == 1
    assert compiled("third", chunk=4096) != first and len(ran) == 2
    assert compiled("fourth", keep="--keep-ptx")[0] == first[0] and len(ran) == 3
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes()[:-40])
    assert compiled("fifth") == first and len(ran) == 4
