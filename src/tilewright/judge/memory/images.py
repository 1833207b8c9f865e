"""Images: contents of slots in memory of their own, which nobody but the judge can read before they are shown.

On the CPU a cell lays an image over the pages of its slot at the last moment before the clock of a timed call. So the
contents stand at the address that the candidate knows, what was computed before is of no use, and since the judge
wrote them before caches were evicted, they are as cold as all else. Each image is a file of its own: who kept a mapping
of an earlier one sees nothing in it of those that follow.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ..wire.messages import TensorRef
from .arena import PAGE_BYTES
from .mapped import Mapped

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def paged(size_bytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class Image:
    """New memory for the pages of the shared arena from byte `start` to byte `end`."""

    def __init__(self, start: int, end: int) -> None:
        self.offset = start // PAGE_BYTES * PAGE_BYTES
        self.size_bytes = paged(end) - self.offset
        self.descriptor = os.memfd_create("tilewright-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.size_bytes)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def write(self, start: int, data: Tensor) -> None:
        """Put bytes where they are to stand in the arena, byte `start` first."""
        left, place = data.numpy().data, start - self.offset
        while len(left):
            done = os.pwrite(self.descriptor, left, place)
            left, place = left[done:], place + done

    def tensors(self, refs: Sequence[TensorRef]) -> tuple[Tensor, ...]:
        """What stands now where these places of the arena are."""
        memory = mmap.mmap(self.descriptor, self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        seen = Mapped("shared", torch.frombuffer(memory, dtype=torch.uint8))
        moved = (TensorRef(arena=r.arena, offset=r.offset - self.offset, spec=r.spec) for r in refs)
        return tuple(seen.tensor(r) for r in moved)

    def close(self) -> None:
        """Safe to call twice; at the latest it is closed when nobody holds it any more."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()
