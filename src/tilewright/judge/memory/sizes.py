"""How much memory the judge may use: for a cell, for evicting caches, for the sets of inputs that timing rotates."""

from __future__ import annotations

import time
from contextlib import suppress

from ...facts.errors import HarnessError, UserError
from ...facts.machine import Machine
from ...facts.problem import Target
from ..candidate_process.load import is_out_of_memory
from ..client import Cell, CellFault
from ..timing.interleave import MOST_CALLS
from ..wire import messages as wire
from .arena import bytes_of
from .places import CaseMemorySizes

_CELL_SHARE = 0.7
_MIN_CELL_BYTES = 2 << 30
_LARGE_BYTES = 2 << 30  # of inputs and outputs
_SPARE_SHARE = (
    0.1  # of a GPU, left to others that share it: contexts of waiting processes, small baselines that warm up
)
_GIVING_BACK_S = 10.0
_FLUSH_SHARE = {"cpu": 8, "cuda": 16}  # one in so many bytes of free memory may serve to evict caches
_LEAST_TIMES_CACHE = 2  # a block of less than that leaves some of the cache as it is
# Sets of inputs are drawn anew for each round of timing: how many bytes of them. A round's drawing is to take less time
# than its calls.
_POOL_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}


def available_bytes(target: Target) -> int:
    """Free memory of the device."""
    if target == "cuda":
        return _gpu_bytes()[0]
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo names no MemAvailable")


def _gpu_bytes() -> tuple[int, int]:
    """Free and total memory of the GPU. UserError where others leave not even this process's context room."""
    import torch

    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            "the GPU's memory is full, and a judge finds no room beside what runs there: wait for it, or run fewer "
            "problems at once (--jobs)"
        ) from error
    return int(free), int(total)


def _to_plan_with(target: Target) -> int:
    """What may be planned with of the free memory."""
    if target == "cpu":
        return available_bytes(target)
    free, total = _gpu_bytes()
    return int(free - _SPARE_SHARE * total)


def give_back(target: Target) -> None:
    """What this process's own comparisons have left cached of a GPU's memory."""
    if target == "cuda":
        import torch

        torch.cuda.empty_cache()


def hoarded_bytes(cell: Cell, target: Target, *, found: int) -> int:
    """What a candidate keeps of a GPU's memory where that leaves others less than they are promised, and much less than
    was `found` free when it came; else 0. Who keeps it shows when it is gone: the cell is ended to find out, and
    HarnessError raised if it was somebody else."""
    if target == "cpu" or not _lacks(found):
        return 0
    with suppress(CellFault):  # who can't give anything back is found out below
        cell.do(wire.Drop())
        if not _lacks(found):
            return 0
    before, deadline = available_bytes(target), time.monotonic() + _GIVING_BACK_S
    cell.kill()
    while _lacks(found):
        if time.monotonic() > deadline:
            raise HarnessError("other processes on this GPU leave no memory to judge with")
        time.sleep(0.1)
    return available_bytes(target) - before


def _lacks(found: int) -> bool:
    free, total = _gpu_bytes()
    spare = _SPARE_SHARE * total
    return free < spare and found - free > spare


def is_large(described: wire.Described) -> bool:
    """Whether a case takes so much of a GPU's memory that nobody can run it beside whoever has the lease."""
    return sum(_sizes(described)) > _LARGE_BYTES


def cell_memory_bytes() -> int:
    """What one cell's process tree may hold of the host's memory."""
    return max(_MIN_CELL_BYTES, int(_CELL_SHARE * available_bytes("cpu")))


def flush_bytes(machine: Machine) -> int:
    """A little more than twice the last-level cache, as far as memory allows; see `evicts_all`."""
    target: Target = "cuda" if machine.target == "cuda" else "cpu"
    return min(int(2.25 * machine.cache_bytes), available_bytes(target) // _FLUSH_SHARE[target]) // 4096 * 4096


def evicts_all(size_bytes: int, machine: Machine) -> bool:
    """Whether a walk through so much memory leaves nothing in the last-level cache."""
    return size_bytes >= _LEAST_TIMES_CACHE * machine.cache_bytes


def check_memory_sizes(described: wire.Described, target: Target) -> CaseMemorySizes:
    """For checking: a second slot, another address for the same contents, and a second place for results, where there
    is room."""
    inputs, outputs = _sizes(described)
    free = _to_plan_with(target) - 2 * inputs - _work_bytes(described) - 4 * outputs  # one of each
    if free >= outputs + inputs:
        return CaseMemorySizes(pool=1, slots=2, results=2)
    return CaseMemorySizes(pool=1, slots=1, results=2 if free >= 2 * outputs else 1)


def timing_memory_sizes(described: wire.Described, target: Target) -> CaseMemorySizes:
    """For timing, a pool set for each slot at least: as many as fit beside all implementations' results and the truth;
    and of small inputs one for each call of a burst."""
    inputs, outputs = _sizes(described)
    memory = _to_plan_with(target) - 5 * outputs - 3 * _work_bytes(described)
    fitting = [s for s in ((3, 3), (2, 2), (1, 1)) if sum(s) * inputs <= memory]
    if fitting:
        pool, slots = fitting[0]
        plenty = min(_POOL_BYTES[target], memory // 2 - slots * inputs) // max(1, inputs)
        return CaseMemorySizes(pool=max(pool, min(MOST_CALLS, plenty)), slots=slots, results=2)
    return CaseMemorySizes(pool=1, slots=1, results=1, tight=True)


def _work_bytes(described: wire.Described) -> int:
    """What one implementation takes during a call, as far as it can be told beforehand: its outputs, and as much again
    or as its inputs for what lies between."""
    inputs, outputs = _sizes(described)
    return outputs + max(inputs, outputs)


def _sizes(described: wire.Described) -> tuple[int, int]:
    """Bytes of one set of inputs and of one set of outputs."""
    return sum(bytes_of(s) for s in described.inputs), sum(bytes_of(o.spec) for o in described.outputs)
