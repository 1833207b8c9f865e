"""How much memory the judge may use: for a cell, for evicting caches, for the sets of inputs that timing rotates."""

from __future__ import annotations

from ..cell import wire
from ..cell.arena import bytes_of
from ..facts.machine import Machine
from ..facts.problem import Target

_CELL_SHARE = 0.7
_MIN_CELL_BYTES = 2 << 30
_MAX_FLUSH_BYTES = {"cpu": 128 << 20, "cuda": 512 << 20}


def available_bytes(target: Target) -> int:
    """Free memory of the device."""
    if target == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo names no MemAvailable")


def cell_memory_bytes() -> int:
    """What one cell's process tree may hold of the host's memory."""
    return max(_MIN_CELL_BYTES, int(_CELL_SHARE * available_bytes("cpu")))


def flush_bytes(machine: Machine) -> int:
    """A little more than twice the last-level cache, bounded where a virtual machine claims a whole server's."""
    return min(int(2.25 * machine.cache_bytes), _MAX_FLUSH_BYTES[machine.target]) // 4096 * 4096


def timing_room_size(described: wire.Described, target: Target) -> tuple[int, int]:
    """(pool, slots): as many sets of inputs as fit beside three implementations' results and the float64 truth."""
    inputs = sum(bytes_of(s) for s in described.inputs)
    outputs = sum(bytes_of(o.spec) for o in described.outputs)
    fixed = 8 * outputs + 3 * max(inputs, outputs)
    room = available_bytes(target) - fixed
    for pool, slots in ((3, 3), (2, 2), (1, 2)):
        if (pool + slots) * inputs <= room:
            return pool, slots
    return 1, 1
