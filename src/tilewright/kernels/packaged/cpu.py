"""Loads the libraries that were compiled at the export, and compiles nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm_ffi

_LINES = re.compile(r"^(?:flags|Features|isa)\s*:(.*)$", re.MULTILINE)


def macros(knobs: Mapping[str, int | str | bool]) -> dict[str, int]:
    """The macros of a build at these knobs; `stream` is none, since every call is told of it."""
    return {f"TW_{name.upper()}": int(value) for name, value in knobs.items() if name != "stream"}


def name_of(source: Path, defines: Mapping[str, int]) -> str:
    """The file in which this source, with these macros, is kept."""
    return f"{source.stem}-{hashlib.sha256(repr(sorted(defines.items())).encode()).hexdigest()[:12]}.so"


def instruction_sets() -> set[str]:
    """What this machine's processor says that it can; empty where it can't be learnt."""
    try:
        found = _LINES.search(Path("/proc/cpuinfo").read_text())
    except OSError:
        return set()
    return set(found.group(1).split()) if found else set()


def load(source: Path, defines: Mapping[str, int]) -> Callable[..., Any]:
    """The function `run` of a program's library. Raises RuntimeError where this processor can't run it, or where it was
    not compiled with these macros."""
    folder = source.parent / "build"
    lacks = sorted(set(json.loads((folder / "processor.json").read_text())) - instruction_sets())
    if lacks:
        raise RuntimeError(
            f"{source.parent.name}: its kernels were compiled for a processor with {', '.join(lacks)}, which this one "
            "lacks; export it on a machine like this"
        )
    library = folder / name_of(source, defines)
    if not library.is_file():
        raise RuntimeError(
            f"{source.parent.name}: {source.stem} was not exported at these settings: configure() can't be used"
        )
    run: Callable[..., Any] = tvm_ffi.load_module(str(library)).get_function("run")
    return run
