"""On a GPU caches are evicted by a ramp that is written through a buffer, and read again at places nobody foresees."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tilewright.judge.candidate_process.timing import Flush, Timer
from tilewright.judge.client import Cell, CellPlan
from tilewright.judge.memory import driver
from tilewright.judge.memory.evictor import Evictor, overwriting_finds
from tilewright.judge.wire import walks

SIZE = 128 << 20


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with Cell(CellPlan(name="candidate", device="cuda", folder=tmp_path / "cell", memory_bytes=12 << 30)) as one:
        yield one


def test_a_cell_walks_through_its_buffer_and_says_so(cell: Cell) -> None:
    evictor = Evictor(SIZE, "cuda")
    evictor.admit(cell)
    for _ in range(5):
        evictor.clear(cell, limit_s=60.0)
    evictor.require_walked()


def test_what_the_ramp_left_is_read_from_memory() -> None:
    """Alone a tensor of 8 MB is read faster when it lies in the L2 cache than after a walk."""
    timer, x = Timer("cuda"), torch.ones(2 << 20, device="cuda")

    def read_ns(evict: bool) -> float:
        found = []
        for _ in range(20):
            x.sum()
            if evict:
                timer.evict(SIZE, None, seed=7)
            driver.synchronize()
            torch.cuda._sleep(400_000)  # type: ignore[no-untyped-call]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            x.sum()
            end.record()
            driver.synchronize()
            found.append(start.elapsed_time(end) * 1e6)
        return sorted(found)[10]

    assert read_ns(True) > 1.15 * read_ns(False)


def test_addresses_that_share_their_memory_are_found() -> None:
    """As by CUDA's virtual memory management: the ramp's end stands where its beginning was."""
    buffer = Flush(SIZE, "cuda")._buffer
    assert walks.overwritten(buffer, 11) == overwriting_finds(SIZE // 4, 11)
    grain = (2 << 20) // 4
    last = buffer[-grain:].clone()
    for start in range(0, buffer.numel(), grain):
        buffer[start : start + grain] = last
    read = walks.words_of(11, buffer.numel()).cuda()
    assert float(buffer[read].sum(dtype=torch.int64)) != overwriting_finds(SIZE // 4, 11)


def test_a_buffer_of_this_gpu_is_more_than_twice_its_l2_cache() -> None:
    from tilewright.edges.gpu.machine import measure
    from tilewright.judge.memory.sizes import evicts_all, flush_bytes

    found = measure("cuda")
    size = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(size), 38, 0)  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    assert found.cache_bytes == size.value
    assert evicts_all(flush_bytes(found), found)
    assert found.cache_bytes_per_s > found.copy_bytes_per_s
