"""Compiled launches on disk, as objects that the DSL exports: a second process loads them and compiles nothing.

An object is kept under a digest of all that can change it; where something of that can't be learnt, it is not kept. It
ends in a digest of itself: what was cut short or changed is no object, and is compiled again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import cutlass.cute as cute

from ...store import anonymous, cache_home, found, keep, writable

_CUDA = Path(__file__).resolve().parents[1]
_FUNCTION = "launch"
_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
_PARTS = tuple(f"nvidia-cutlass-dsl-libs-{part}" for part in ("base", "core", "cu12", "cu13"))  # as they are installed
_SETTINGS = ("CUTE_DSL_", "CUTLASS_", "CUDA_TOOLKIT_PATH", "TVM_FFI_")
_PLACES = ("_CACHE_DIR", "_DUMP_DIR")  # where tools put their files: each cell has folders of its own
_NO_SKELETONS = ("ahead.py", "cubin.py", "demand.py")  # they look at what was compiled
OFF = "TILEWRIGHT_NO_KERNEL_CACHE"  # set to anything, nothing is read from disk or written there

Launch = Callable[..., None]


def obtain(source: Path | None, facts: tuple[object, ...], make: Callable[[], Any], used: set[Path]) -> Launch:
    """The launch kept under these facts, which hold the knobs, else what `make` compiles, which is kept from now on;
    `used` gains the file that it lies in. Without a `source`, the file that holds the kernel, nothing is kept."""
    name = key(source, facts) if source is not None else ""
    if source is None or not name:
        return make()  # type: ignore[no-any-return]
    launch = load(source, name)
    if launch is not None:
        used.update(path for path in [found(places(source), f"{name}.o")] if path)
        return launch
    made: Launch = make()
    used.update(path for path in [save(source, name, made)] if path)
    return made


def key(source: Path, facts: tuple[object, ...]) -> str:
    """A digest of the file that holds the kernel, the skeletons, the toolchain and these facts; "" where one of them
    can't be learnt. The driver is not among them: an object holds machine code for its architecture. Nor are the
    settings that the file begins with, since those in use are among the facts, nor the pattern's number."""
    if os.environ.get(OFF):
        return ""
    toolchain = _toolchain()
    try:
        digest = hashlib.sha256(anonymous(source.read_bytes().decode()).encode())
    except (OSError, UnicodeDecodeError):
        return ""
    if not toolchain:
        return ""
    steering = (k for k in os.environ if k.startswith(_SETTINGS) and not k.endswith(_PLACES))
    settings = sorted(f"{k}={os.environ[k]}" for k in steering)
    for part in (toolchain, *settings, repr(facts)):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()[:24]


@functools.cache
def _toolchain() -> str:
    """The skeletons by content, and what compiles them by version; "" where that can't be learnt. Skeletons in folders
    below tell of themselves (see `contents`): not every candidate has them."""
    files = "\n".join(contents(_CUDA / part) for part in ("common", "rows"))
    try:
        versions = [f"{name} {metadata.version(name)}" for name in _PACKAGES]
    except metadata.PackageNotFoundError:
        return ""
    for name in _PARTS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return "\n".join([files, sys.version, *versions]) if files.strip() else ""


@functools.cache
def contents(folder: Path) -> str:
    """A digest of the skeletons in a folder and below; "" where they can't be read."""
    try:
        texts = [p.read_bytes() for p in sorted(folder.rglob("*.py")) if p.name not in _NO_SKELETONS]
    except OSError:
        return ""
    return hashlib.sha256(b"\0".join(texts)).hexdigest() if texts else ""


def places(source: Path) -> tuple[Path, ...]:
    """Where objects may lie: beside the kernel's file, or in this user's cache."""
    return (source.parent / "build", cache_home() / "tilewright" / "cuda")


def kept(source: Path | None, facts: tuple[object, ...]) -> bytes | None:
    """The object kept under these facts, where there is one and it is whole."""
    path = found(places(source), f"{name}.o") if source is not None and (name := key(source, facts)) else None
    try:
        content = path.read_bytes() if path is not None else b""
    except OSError:
        return None
    return content[:-32] if _is_whole(content) else None


def load(source: Path, name: str) -> Launch | None:
    """The launch kept under this key, or None; what can't be loaded is removed."""
    path = found(places(source), f"{name}.o") if name else None
    if path is None:
        return None
    try:
        if not _is_whole(path.read_bytes()):
            raise ValueError("cut short, or changed")
        launch: Launch = getattr(cute.runtime.load_module(str(path), enable_tvm_ffi=True), _FUNCTION)
    except Exception:  # of whatever kind: the DSL's, tvm-ffi's, the file system's; it is compiled again
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return launch


def save(source: Path, name: str, launch: Any) -> Path | None:
    """Keep a compiled launch under this key, where a folder can be written; that it can't be exported is no error."""
    folder = writable(places(source), "cuda") if name else None
    if folder is None:
        return None

    def write(path: Path) -> None:
        launch.export_to_c(str(path), _FUNCTION)
        content = path.read_bytes()
        path.write_bytes(content + hashlib.sha256(content).digest())

    try:
        return keep(folder, f"{name}.o", write)
    except Exception:  # the disk is full, or the DSL can't export this one: it runs all the same
        return None


def _is_whole(content: bytes) -> bool:
    return len(content) > 32 and hashlib.sha256(content[:-32]).digest() == content[-32:]
