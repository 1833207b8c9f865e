"""Caches are evicted by a walk through memory that code under test can't empty, and whoever replaces it is found."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tilewright.judge.candidate_process.timing import Timer
from tilewright.judge.client import Cell, CellFault
from tilewright.judge.memory.evictor import Evictor, EvictorBlock, overwriting_finds
from tilewright.judge.memory.mapped import Opened
from tilewright.judge.wire import messages as wire
from tilewright.judge.wire import walks

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = LIBC.mremap.restype = ctypes.c_void_p
SIZE = 8 << 20
DONTNEED, REMOVE = 4, 9
FIXED, MAYMOVE = 0x10, 1


class FakeCell:
    """Answers as a cell's session does, in this process; `before` each walk something is done to its mapping."""

    def __init__(self, before: Callable[[torch.Tensor], None] = lambda data: None) -> None:
        self.timer, self.arenas, self.before, self.killed = Timer("cpu"), {}, before, False
        self.plan = type("Plan", (), {"name": "candidate"})

    def map_arena(self, message: wire.MapArena, descriptor: int) -> None:
        import os

        self.arenas[message.name] = Opened(message, os.dup(descriptor))

    def ask(self, request: wire.Clear, kind: type, *, limit_s: float) -> wire.Cleared:
        self.before(self.arenas[walks.BLOCK].data)
        found = self.timer.evict(request.flush_bytes, self.arenas[walks.BLOCK], seed=request.seed)
        assert isinstance(found, wire.Cleared)
        return found

    def kill(self) -> None:
        self.killed = True


def _walk(cell: FakeCell, size_bytes: int = SIZE) -> None:
    evictor = Evictor(size_bytes, "cpu")
    evictor.admit(cell)  # type: ignore[arg-type]
    for _ in range(3):
        evictor.clear(cell, limit_s=1.0)  # type: ignore[arg-type]
    evictor.require_walked()


def _lets_go(data: torch.Tensor) -> None:
    assert LIBC.madvise(ctypes.c_void_p(data.data_ptr()), ctypes.c_size_t(data.numel()), DONTNEED) == 0


def _tries_to_punch(data: torch.Tensor) -> None:
    assert LIBC.madvise(ctypes.c_void_p(data.data_ptr()), ctypes.c_size_t(data.numel()), REMOVE) == -1


def test_pages_that_are_let_go_come_back_as_they_were() -> None:
    """Memory of the process's own would be one shared page of zeros then, and the walk evict nothing."""
    _walk(FakeCell())
    _walk(FakeCell(_lets_go))
    _walk(FakeCell(_tries_to_punch))


def _puts_zeros(data: torch.Tensor) -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED
    place = ctypes.c_void_p(data.data_ptr())
    assert LIBC.mmap(place, ctypes.c_size_t(data.numel()), mmap.PROT_READ, flags, -1, ctypes.c_long(0)) != -1


def _puts_one_page_everywhere(data: torch.Tensor) -> None:
    """Each page of the block becomes another mapping of the first's file page: one page that all addresses share."""
    import os

    shared = os.memfd_create("one")
    os.write(shared, bytes(data[:4096].numpy()))
    for page in range(data.numel() // 4096):
        place = ctypes.c_void_p(data.data_ptr() + 4096 * page)
        LIBC.mmap(place, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED | FIXED, shared, ctypes.c_long(0))
    os.close(shared)


def _puts_half_elsewhere(data: torch.Tensor) -> None:
    half = data.numel() // 2 // 4096 * 4096
    _puts_zeros(data[half:])


@pytest.mark.parametrize("swap", [_puts_zeros, _puts_one_page_everywhere, _puts_half_elsewhere])
def test_other_pages_in_their_place_are_found(swap: Callable[[torch.Tensor], None]) -> None:
    cell = FakeCell(swap)
    with pytest.raises(CellFault, match="other pages took its place") as caught:
        _walk(cell)
    assert caught.value.reason == "tampering" and caught.value.by_code and cell.killed


def test_a_walk_that_reads_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "walked", lambda block, seed: 0.0)
    with pytest.raises(CellFault):
        _walk(FakeCell())


def test_the_block_is_random_and_can_be_neither_written_nor_shortened() -> None:
    import os

    block = EvictorBlock(SIZE)
    assert torch.unique(block.data, dim=0).shape[0] == SIZE // 4096
    for change in (lambda: os.ftruncate(block.descriptor, 4096), lambda: os.pwrite(block.descriptor, b"0", 0)):
        with pytest.raises(PermissionError):
            change()
    assert not torch.equal(block.data, EvictorBlock(SIZE).data)


@pytest.mark.parametrize("words", [5000, 1 << 20])
def test_a_ramp_that_was_written_is_found_again(words: int) -> None:
    buffer = torch.zeros(words, dtype=torch.int32)
    for seed in (0, 12345, walks.MOST_SEED - 1):
        assert walks.overwritten(buffer, seed) == overwriting_finds(words, seed)
    shared = torch.zeros(4096, dtype=torch.int32).expand(2, 4096)  # two places of one memory
    seed = 7
    for part in range(2):
        shared[part].copy_(torch.arange(seed + 4096 * part, seed + 4096 * (part + 1)))
    read = walks.words_of(seed, 8192)
    assert float(shared.reshape(-1)[read].sum()) != overwriting_finds(8192, seed)


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    from tilewright.judge.client import CellPlan

    with Cell(CellPlan(name="candidate", device="cpu", folder=tmp_path / "cell", memory_bytes=2 << 30)) as one:
        yield one


def test_a_cell_behind_its_walls_walks_through_the_judges_block(cell: Cell) -> None:
    evictor = Evictor(SIZE, "cpu")
    evictor.admit(cell)
    for _ in range(5):
        evictor.clear(cell, limit_s=20.0)
    evictor.require_walked()
