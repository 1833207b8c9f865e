"""The judge's side of evicting caches: the block that cells walk through, and whether they did (see
judge.wire.walks)."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ..client import Cell, CellFault
from ..wire import messages as wire
from ..wire import walks
from .mapped import map_sealed

_PAGE_BYTES = 4 * walks.PAGE_WORDS
_CHUNK_PAGES = 4096
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class EvictorBlock:
    """Sealed memory of random contents that nobody can write to or shorten; `data`, fp32 of shape (pages, words)."""

    def __init__(self, size_bytes: int) -> None:
        pages = max(1, size_bytes // _PAGE_BYTES)
        self.size_bytes = pages * _PAGE_BYTES
        self.descriptor = os.memfd_create(f"tilewright-{walks.BLOCK}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        for first in range(0, pages, _CHUNK_PAGES):
            size = (min(_CHUNK_PAGES, pages - first), walks.PAGE_WORDS)
            drawn = torch.randint(-walks.LARGEST, walks.LARGEST + 1, size, generator=source, dtype=torch.float32)
            os.pwrite(self.descriptor, drawn.numpy().tobytes(), first * _PAGE_BYTES)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.data = walks.pages(map_sealed(self.descriptor, self.size_bytes))

    def message(self) -> wire.MapArena:
        return wire.MapArena(name=walks.BLOCK, size_bytes=self.size_bytes, device="cpu", sealed=True)


@lru_cache(maxsize=1)
def _block(size_bytes: int) -> EvictorBlock:
    """One for all judges of the process, and for all cells: nobody can change it."""
    return EvictorBlock(size_bytes)


class Evictor:
    """Has cells evict `flush_bytes` of caches. What a cell found on its walk is looked at by `require_walked`, later:
    the judge's own reading must not stand between the walk and the call that is timed."""

    def __init__(self, flush_bytes: int, device: str) -> None:
        self.flush_bytes = flush_bytes
        self._block = _block(flush_bytes) if device == "cpu" and flush_bytes else None
        self._walked: list[tuple[Cell, int, float]] = []

    def admit(self, cell: Cell) -> None:
        """Before the cell's first walk."""
        if self._block is not None:
            cell.map_arena(self._block.message(), self._block.descriptor)

    def clear(self, cell: Cell, *, attributes: Sequence[wire.Attribute] = (), limit_s: float) -> None:
        """Have the cell make ready for a timed call, with these plain values, and walk at last."""
        request = wire.Clear(flush_bytes=self.flush_bytes, seed=self._seed(), attributes=tuple(attributes))
        answer = cell.ask(request, wire.Cleared, limit_s=limit_s)
        self._walked.append((cell, request.seed, answer.found))

    def before(self, call: wire.TimedCall) -> wire.TimedCall:
        """On a GPU, where the judge writes to a slot after all else: the call with a walk before it."""
        return replace(call, flush_bytes=self.flush_bytes, flush_seed=self._seed())

    def note(self, cell: Cell, call: wire.TimedCall, tick: wire.Tick) -> None:
        """What the cell found on the walk before the call, where it was told to make one."""
        if call.flush_bytes:
            self._walked.append((cell, call.flush_seed, tick.walked))

    @staticmethod
    def _seed() -> int:
        return secrets.randbelow(walks.MOST_SEED)

    def require_walked(self) -> None:
        """Raise CellFault("tampering") where a cell did not find what lies in the block: it walked through something
        else, and its caches may be warm."""
        walked, self._walked = self._walked, []
        for cell, seed, found in walked:
            if found != self._finds(seed):
                cell.kill()
                what = "the memory by which caches are evicted is not what it was: other pages took its place"
                raise CellFault("tampering", what, source=cell.plan.name)

    def _finds(self, seed: int) -> float:
        if self._block is not None:
            return walk_finds(self._block.data, seed)
        return overwriting_finds(self.flush_bytes // 4, seed)


def walk_finds(block: Tensor, seed: int) -> float:
    """What `walks.walked` must give, from the drawn pages alone: in numpy, whose sums wake no other threads."""
    source = torch.Generator().manual_seed(seed)
    drawn, places = walks.signs(source), walks.pages_of(source, block)
    return float((block.numpy()[places.numpy()] * drawn.numpy()).sum(dtype="float64"))


def overwriting_finds(words: int, seed: int) -> float:
    """What `walks.overwritten` must give for a buffer of so many words."""
    return float(int(walks.words_of(seed, words).sum()) + seed * walks.SAMPLED_WORDS)
