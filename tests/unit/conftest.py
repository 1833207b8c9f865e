"""What tests compile is kept between runs (tests/kept.py); and C++ kernels of those that ask for it are compiled in
haste: 1.1 s of a processor each in the place of 3.7."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kept
from tilewright.edges.gpu import machine as machines
from tilewright.kernels.cpu import build

# Haste is told by a variable, and the compiler is another only where a test asks for it. Headers
# of the system, two fifths of what is left, are read once; where the flags are others, gcc reads the text.
_SCRIPT = """#!/bin/bash
if [ -n "$TESTS_IN_HASTE" ] && [[ "$*" == *" -O3 "* ]]; then
    set -- "${@/#-O3/-O1}"
    if [ ! -e "$0.h.gch" ]; then
        flags=()
        for given in "$@"; do [[ "$given" != -[OfmsIW]* ]] || flags+=("$given"); done
        %(compiler)s "${flags[@]}" -x c++-header "$0.h" -o "$0.$$" && mv "$0.$$" "$0.h.gch"
    fi
    set -- -include "$0.h" "$@"
fi
exec %(compiler)s "$@"
"""
_HEADERS = "immintrin.h omp.h sys/mman.h tvm/ffi/c_api.h cmath cstdint cstdio cstring limits type_traits vector".split()


# By its path: a test may put another on PATH, or none, and what that one makes is not kept.
COMPILER = shutil.which(os.environ.get("CXX", "g++")) or "g++"


@pytest.fixture(scope="session", autouse=True)
def keeping_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiles as users get it, and keeps what it makes: what this process builds goes through it."""
    place = kept.folder()
    if place is None or shutil.which(COMPILER) is None:
        yield Path(COMPILER)
        return
    kept.prune(place)
    script = kept.cpp_compiler(tmp_path_factory.mktemp("keeps") / "g++", COMPILER, place)
    compile_ = build._compile

    def through(command: list[str]) -> None:
        compile_([str(script), *command[1:]] if command[0] == COMPILER else command)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "_compile", through)
        yield script


@pytest.fixture(scope="module", autouse=True)
def cute_kernels_are_kept() -> None:
    """Where the DSL was imported; to import it takes seconds."""
    place = kept.folder()
    if place is not None and "cutlass" in sys.modules:
        kept.keep_cute(place)


@pytest.fixture(scope="session")
def hasty_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("compiler") / "g++"
    script.write_text(_SCRIPT % {"compiler": COMPILER})
    script.chmod(0o755)
    present = (f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in _HEADERS)
    script.with_name("g++.h").write_text("".join(present))
    place = kept.folder()
    return script if place is None else kept.cpp_compiler(script.with_name("kept-g++"), str(script), place)


@pytest.fixture
def haste(hasty_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled ahead of a judge's cells is compiled in haste; they find it all the same, under its own name."""
    compile_ = build._compile
    monkeypatch.setenv("TESTS_IN_HASTE", "1")
    monkeypatch.setattr(build, "_compile", lambda command: compile_([str(hasty_compiler), *command[1:]]))


_IN_HASTE = tuple(Path(__file__).with_name(name) for name in ("frontend", "fusion", "realise"))


@pytest.fixture(autouse=True)
def in_haste(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in C++ are compiled in haste there; tests of arithmetic that an optimiser might change are marked
    `optimised`."""
    if any(request.path.is_relative_to(place) for place in _IN_HASTE):
        monkeypatch.setenv("CXX", str(request.getfixturevalue("hasty_compiler")))
        if request.node.get_closest_marker("optimised") is None:
            monkeypatch.setenv("TESTS_IN_HASTE", "1")


# Rates of a machine that is not measured: a busy one would be measured at every start, for seconds. Its rates are
# never reached, so that no time is implausible; its cache is small, so that it is evicted quickly before a timed call.
RATES = {
    "cache_bytes": 2 << 20, "streams": {"copy": 1e12},
    "matmul": {"f32": 1e15}, "cache_rate": 0.0, "calm": True,
}  # fmt: skip


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def told(script: str, arguments: tuple[str, ...], **_: Any) -> dict[str, Any]:
        return RATES | {"processors": machines.threads()}

    folder = tmp_path_factory.mktemp("known")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "_child", told)
        for threads in (machines.threads(), 1):
            patch.setenv("OMP_NUM_THREADS", str(threads))
            machines.machine("cpu", cache_dir=folder)
    return folder
