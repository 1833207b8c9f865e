"""Loading a candidate's ModelNew, and blaming what the code under test raises on it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ..wire.calls import FaultReply

EXCERPT_BYTES = 4000
_RUNTIME = ("torch", "cutlass", "tvm_ffi")  # that of the DSL sets a handler of signals, wherever it was installed


class CodeRaised(Exception):
    """The code under test raised, exited or gave something unusable. `reason` is a slug for facts.outcome.Failure."""

    def __init__(self, reason: str, summary: str, excerpt: str = "") -> None:
        super().__init__(summary)
        self.reason, self.summary, self.excerpt = reason, summary, excerpt

    def fault(self) -> FaultReply:
        return FaultReply(by_code=True, reason=self.reason, summary=self.summary, excerpt=self.excerpt)


@contextmanager
def blaming(reason: str, where: str) -> Iterator[None]:
    """Turn whatever the code under test raises in the block, SystemExit included, into CodeRaised."""
    try:
        yield
    except CodeRaised:
        raise
    except BaseException as error:
        if is_out_of_memory(error):
            reason = "out_of_memory"
        excerpt = "".join(traceback.format_exception(error))[-EXCERPT_BYTES:]
        said = f"{where}: {type(error).__name__}: {last_line(error)}"[:440] + _place(error)
        raise CodeRaised(reason, said, excerpt) from error


def _place(error: BaseException) -> str:
    """Where it was raised: the last line on the way there that is neither installed nor ours; "" if there is none."""
    others = (*installed_paths(), str(Path(__file__).resolve().parents[2]), "<")
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(path, line) for path, line in lines if not path.startswith(others)]
    return f" (line {own[-1][1]} of {os.path.basename(own[-1][0])[:40]})" if own else ""


def said_by(error: BaseException) -> str:
    """What an exception says; one of the code under test may raise where it is asked."""
    try:
        return str(error)
    except BaseException as second:
        return f"(it says nothing: its text raised a {type(second).__name__})"


_NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory")  # of the host; of a GPU on which no context fits


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or of a device was lacking."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(words in said_by(error) for words in _NO_MEMORY)
    )


def last_line(error: BaseException) -> str:
    """The last line of what an exception says; of a device's lack of memory, what was asked for and what there is."""
    line = (said_by(error).strip().splitlines() or [""])[-1]
    return ". ".join(line.split(". ")[:3]) if is_out_of_memory(error) else line


@cache
def installed_paths() -> tuple[str, ...]:
    """Where Python and installed packages lie: a file under none of these is somebody's own. The folders of what
    kernels run on are among them, and those on PYTHONPATH that hold distributions: `pip install --user`, `--target` and
    a system's Python put packages where `sysconfig` names nothing. A cell asks first before it loads anybody's code:
    the answer stays."""
    found = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    listed = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    found += [place for place in listed if any(Path(place).glob("*.dist-info"))]
    for spec in filter(None, map(importlib.util.find_spec, _RUNTIME)):
        if spec.origin is not None:
            found.append(os.path.dirname(os.path.dirname(spec.origin)))
    return tuple(dict.fromkeys(place.rstrip(os.sep) + os.sep for place in found))


def load_candidate(folder: str, entry: str) -> tuple[type, types.ModuleType]:
    """Import the candidate's entry file from its folder, first on the path; its ModelNew and the module itself."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    with blaming("does_not_load", f"{entry} raised when it was imported"):
        module = importlib.import_module(entry.removesuffix(".py").replace("/", "."))
    found = getattr(module, "ModelNew", None)
    if not isinstance(found, type):
        raise CodeRaised("no_entry", f"{entry} defines no class ModelNew")
    return found, module
