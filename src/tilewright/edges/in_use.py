"""Folders that a process works from: held for as long as it lives, so that nobody removes them meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOST = 100  # a descriptor each, of perhaps 1024 that a process may have
_held: dict[str, int] = {}  # descriptors, by folder; they close with the process


def hold(folder: Path) -> None:
    """This process works from the folder until it ends. Nothing is held where the file system has no locks, nor beyond
    a hundred folders."""
    if str(folder) in _held or len(_held) >= _MOST:
        return
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        _held[str(folder)] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether nobody holds the file or folder, nor a lock on it; meanwhile nobody else can. False where it can't be
    opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
