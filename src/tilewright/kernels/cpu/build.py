"""Builds a program's C++ file with the machine's compiler and loads it through tvm-ffi; results are kept on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path, find_libtvm_ffi

HEADERS = ("vec.h", "math.h", "reductions.h", "walk.h", "rows.h", "columns.h", "tiles.h", "scan.h", "entry.h")
_HERE = Path(__file__).resolve().parent
# No -ffast-math: NaN and infinities keep their meaning. No contraction: a * b - c rounds as torch's two operations do.
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-Wno-psabi",
)  # fmt: skip


class BuildError(RuntimeError):
    """There is no compiler, or it refused the source; the message says which and what it printed."""


def build(source: Path, defines: Mapping[str, int]) -> Path:
    """The shared library of `source` with these macros defined, compiled unless it lies in a cache already.

    It is kept in `build/` beside the source, or where that can't be written, under $XDG_CACHE_HOME/tilewright/cpu. The
    name holds a digest of all that can change the result, and files appear by renaming, so processes may build at once.
    """
    compiler = _compiler()
    arguments = (*FLAGS, *(f"-D{name}={value}" for name, value in sorted(defines.items())))
    name = f"{source.stem}-{_key(source, compiler, arguments)}.so"
    places = (source.parent / "build", _cache() / "tilewright" / "cpu")
    for place in places:
        if (place / name).is_file():
            return place / name
    target = _writable(places) / name
    handle, made = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    os.close(handle)
    try:
        _compile([compiler, *arguments, *_search_paths(), str(source), "-o", made, *_link_flags()])
        os.replace(made, target)
    finally:
        Path(made).unlink(missing_ok=True)
    return target


def load(source: Path, defines: Mapping[str, int]) -> Callable[..., Any]:
    """The function `run` of a program's library: `run(*tensors, threads, stream) -> int` (see entry.h)."""
    module = tvm_ffi.load_module(str(build(source, defines)))
    run: Callable[..., Any] = module.get_function("run")
    return run


@functools.cache
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
    if done.returncode != 0:
        raise BuildError(f"{command[0]} exited with {done.returncode}:\n{done.stderr[-4000:]}")


def _key(source: Path, compiler: str, arguments: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in (_version(compiler), _processor(), tvm_ffi.__version__, *arguments):
        digest.update(part.encode() + b"\0")
    for file in (source, *(_HERE / name for name in HEADERS)):
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))}))


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home) if home else Path.home() / ".cache"


def _writable(places: tuple[Path, ...]) -> Path:
    for place in (*places, Path(tempfile.gettempdir()) / f"tilewright-cpu-{os.getuid()}"):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK):
            return place
    raise BuildError(f"no folder to build in: none of {', '.join(map(str, places))} can be written")
