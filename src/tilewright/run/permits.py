"""Permits to compile: of all runs on the same cores no more processes compile at a time than leave cores to those that
measure there, whose host else takes several times as long over its part."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_FEW = 8  # cores, which those that compile share as they come
_WAIT_S = (0.2, 0.6)  # between two tries: hundreds of threads may wait, and each tries every slot
_MOST_WAIT_S = 60.0  # who holds one may have been stopped


def most(cores: int) -> int:
    """Processes that may compile at a time; 0: any number."""
    return 0 if cores <= _FEW else cores - cores // 4


@contextmanager
def permit(count: int, *, folder: Path | None = None, wait_s: float = _MOST_WAIT_S) -> Iterator[None]:
    """Hold one of so many (0: of any number), or none after so long a wait. A process that dies gives back its own;
    where no file can be written, nobody waits."""
    if not count:
        yield
        return
    ends = time.monotonic() + wait_s
    place = folder if folder is not None else _place(os.sched_getaffinity(0))
    slots = [place / str(n) for n in range(count)]
    with ExitStack() as held:
        try:
            place.mkdir(parents=True, exist_ok=True)
            while not any(_taken(slot, held) for slot in random.sample(slots, count)) and time.monotonic() < ends:
                time.sleep(random.uniform(*_WAIT_S))
        except OSError:
            held.close()
        yield


def _place(cores: set[int]) -> Path:
    """The folder of those that may use these cores: runs that are kept to cores of their own wait for nobody."""
    named = hashlib.sha256(repr(sorted(cores)).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tilewright-{os.getuid()}" / f"compiling-{named}"


def _taken(slot: Path, held: ExitStack) -> bool:
    file = slot.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    held.enter_context(file)
    return True
