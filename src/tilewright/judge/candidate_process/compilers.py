"""Compilers that are done: inductor's pool of workers, whose start alone takes seconds of all processors."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def end_compilers() -> None:
    """Kill all processes that descend from this one, and have inductor start another pool if it compiles again."""
    for pid in _descendants(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    inductor = sys.modules.get("torch._inductor.async_compile")
    forget = getattr(inductor, "after_fork", None)
    if forget is not None:
        forget()


def _descendants(pid: int) -> list[int]:
    """Parents first, so that none is left to start another; [] where the kernel does not tell of children."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in file.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found
