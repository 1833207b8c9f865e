"""A process that becomes the fork server of cells, or a cell: `python -m tilewright.judge.candidate_process.cell_main`
with a descriptor (see judge.candidate_process.fork).

Frames of the code under test lead to this module: nothing is held in it, nor in a variable of `main`.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any


def _answers(descriptor: int) -> Iterator[Any]:
    """An iterator that answers one request with every step."""
    import gc
    import socket

    gc.disable()  # until all is imported: nearly all of it stays, and looking for the rest takes a fifth of the time
    from .fork import forked, opened

    return opened(*forked(socket.socket(fileno=descriptor)))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's to handle
    deque(_answers(int(sys.argv[1])), maxlen=0)


if __name__ == "__main__":
    main()
