"""Builds a program's C++ file with the machine's compiler and loads it through tvm-ffi; results are kept on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path, find_libtvm_ffi

from ..store import cache_home, found, keep, writable

_HERE = Path(__file__).resolve().parent
# No -ffast-math: NaN and infinities keep their meaning. No contraction: a * b - c rounds as torch's two operations do.
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-Wno-psabi",
)  # fmt: skip


# Variables that make gcc and clang look for headers, libraries or themselves elsewhere.
_READ_BY_COMPILERS = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX",
)  # fmt: skip
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_PROCESSOR_LINES = ("flags", "model name", "Features", "CPU implementer", "CPU part", "CPU variant", "isa", "cpu\t")


class BuildError(RuntimeError):
    """There is no compiler, or it refused the source; the message says which and what it printed."""


def macros(knobs: Mapping[str, int | str | bool]) -> dict[str, int]:
    """The macros of a build at these knobs; `stream` is none, since every call is told of it."""
    return {f"TW_{name.upper()}": int(value) for name, value in knobs.items() if name != "stream"}


def build(source: Path, defines: Mapping[str, int], *, folder: Path | None = None) -> Path:
    """The shared library of `source` with these macros defined, compiled unless it lies in a cache already.

    It is kept in `folder`, or else in `build/` beside the source, or where that can't be written, under
    $XDG_CACHE_HOME/tilewright/cpu. The name holds a digest of all that can change the result (where something of that
    can't be learnt, a name that nobody finds again), and files appear by renaming, so processes may build at once.
    Raises BuildError."""
    compiler = _compiler()
    arguments = (*FLAGS, *(f"-D{name}={value}" for name, value in sorted(defines.items())))
    name = f"{source.stem}-{_key(source, compiler, arguments)}.so"
    places = (folder,) if folder else (source.parent / "build", cache_home() / "tilewright" / "cpu")
    kept = found(places, name)
    if kept is not None:
        return kept
    target = writable(places, "cpu")
    if target is None:
        raise BuildError(f"no folder to build in: none of {', '.join(map(str, places))} can be written")
    command = [compiler, *arguments, *_search_paths(), str(source)]
    return keep(target, name, lambda made: _compile([*command, "-o", str(made), *_link_flags()]))


def load(source: Path, defines: Mapping[str, int]) -> Callable[..., Any]:
    """The function `run` of a program's library: `run(*tensors, threads, stream) -> int` (see entry.h). A kept library
    that can't be loaded (a crash of the machine may leave an empty file) is built once more."""
    library = build(source, defines)
    try:
        module = tvm_ffi.load_module(str(library))
    except RuntimeError:  # tvm-ffi's, for whatever dlopen refuses
        library.unlink(missing_ok=True)
        module = tvm_ffi.load_module(str(build(source, defines)))
    run: Callable[..., Any] = module.get_function("run")
    return run


def _compiler() -> str:
    for name in filter(None, (os.environ.get("CXX"), "g++", "c++")):
        found = shutil.which(name)
        if found:
            return found
    raise BuildError("no C++ compiler: install g++ 12 or newer, or name one in CXX")


def _search_paths() -> list[str]:
    return [f"-I{_HERE}", f"-I{find_include_path()}", f"-I{find_dlpack_include_path()}"]


def _link_flags() -> list[str]:
    library = Path(find_libtvm_ffi())
    return [f"-L{library.parent}", "-ltvm_ffi"]


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as slow:
        raise BuildError(f"{command[0]} took more than {slow.timeout:.0f} s") from slow
    except OSError as error:
        raise BuildError(f"{command[0]} can't be run: {error.strerror or error}") from error
    if done.returncode != 0:
        raise BuildError(f"{command[0]} exited with {done.returncode}:\n{done.stderr[-4000:]}")


def _key(source: Path, compiler: str, arguments: tuple[str, ...]) -> str:
    """A digest of all that can change the result; where something can't be learnt, one that never comes again."""
    facts = (_identity(compiler), _processor())
    digest = hashlib.sha256(b"" if all(facts) else os.urandom(32))
    settings = [f"{name}={os.environ.get(name, '')}" for name in _READ_BY_COMPILERS]
    for part in (*facts, *settings, tvm_ffi.__version__, *arguments):
        digest.update(part.encode() + b"\0")
    for file in (source, *_headers(source)):
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _headers(source: Path) -> list[Path]:
    """Ours that it includes, and that these include: by their place in this folder."""
    seen: dict[str, Path] = {}
    todo = [source]
    while todo:
        for name in _INCLUDE.findall(todo.pop().read_text(encoding="utf-8")):
            if name not in seen and (_HERE / name).exists():
                seen[name] = _HERE / name
                todo.append(seen[name])
    return [seen[name] for name in sorted(seen)]


@functools.cache
def _identity(compiler: str) -> str:
    """The compiler by what it says, where it lies and what it is; "" where one of these can't be learnt."""
    path = os.path.realpath(compiler)
    try:
        said = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{said}{path}\n{content}" if said else ""


@functools.cache
def _processor() -> str:
    """What -march=native depends on; "" where it can't be learnt."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    known = sorted({line for line in lines if line.startswith(_PROCESSOR_LINES)})
    return "\n".join([platform.machine(), *known]) if known else ""
