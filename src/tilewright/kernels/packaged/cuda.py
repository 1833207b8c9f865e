"""Loads the launches that were compiled and linked at the export, and compiles nothing. At the export itself `LINK`
makes a library of what the DSL compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm_ffi

FUNCTION = "launch"
LINK: Callable[[Any, Path], None] | None = None

Launch = Callable[..., None]


class NotExportedError(RuntimeError):
    """There is no launch for operands that lie like this, or for this GPU."""


def obtain(source: Path | None, facts: tuple[object, ...], make: Callable[[], Any], used: set[Path]) -> Launch:
    """The launch of these facts; `used` gains the file that it lies in. Raises NotExportedError."""
    assert source is not None
    library = source.parent / "build" / f"{source.stem}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.so"
    if LINK is not None and not library.is_file():
        LINK(make(), library)
    if not library.is_file():
        raise NotExportedError(
            f"{source.parent.name}: {source.stem} was not compiled for this GPU, or for such operands: {facts}"
        )
    used.add(library)
    if LINK is not None:
        return _never
    launch: Launch = tvm_ffi.load_module(str(library)).get_function(FUNCTION)
    return launch


def kept(source: Path | None, facts: tuple[object, ...]) -> bytes | None:
    """No object of the DSL's."""
    return None


def contents(folder: Path) -> str:
    """The skeletons are those of the export."""
    return "exported"


def _never(*_: Any) -> None:
    raise RuntimeError("what was compiled for another machine can't be launched here")
