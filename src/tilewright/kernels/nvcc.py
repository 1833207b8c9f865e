"""CUDA C++ files to libraries, by nvcc: each is kept in a folder `build` under a digest of its text.

A candidate carries this file, and builds what was not built ahead for it. Where it runs, neither the compiler nor
CUTLASS's headers need be there then; whoever keeps libraries for long has a folder for each `toolchain`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = ("-O3", "-DNDEBUG", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr",
         "-shared", "-Xcompiler", "-fPIC")  # fmt: skip
_LIMIT_S = 300.0


class NotBuilt(Exception):
    """What the compiler said."""


@functools.cache
def _compiler() -> tuple[str, str]:
    """Its path and its version; "" where there is none."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin") or ""
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout if found else ""
    return found, said


def name_of(source: Path) -> str:
    """The file in which what this source becomes is kept."""
    return f"nvcc_{_digest(source.read_text(), *FLAGS)}.so"


def toolchain(headers: str) -> str:
    """A digest of what else can change a library: the compiler, and CUTLASS's version."""
    version = Path(headers, "cutlass", "version.h")
    return _digest(_compiler()[1], version.read_text() if version.is_file() else "")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def libraries(sources: Sequence[Path], headers: str, places: Sequence[Path], *, jobs: int) -> list[Path | NotBuilt]:
    """What each source becomes: where one of the places has it, else built now, `jobs` at a time, in the first of
    them."""
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        return list(pool.map(lambda source: _library(source, headers, places), sources))


def _library(source: Path, headers: str, places: Sequence[Path]) -> Path | NotBuilt:
    name = name_of(source)
    kept = next((place / name for place in places if (place / name).is_file()), None)
    if kept is not None:
        return kept
    places[0].mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=places[0]) as folder:
        made = Path(folder) / name
        if not _compiler()[0]:
            return NotBuilt("no nvcc: install the CUDA toolkit, or name its folder in CUDA_HOME")
        command = [_compiler()[0], *FLAGS, "-I", headers, "-o", str(made), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return NotBuilt(str(error))
        if done.returncode or not made.is_file():
            return NotBuilt((done.stdout + done.stderr)[-2000:])
        os.replace(made, places[0] / name)
    return places[0] / name
