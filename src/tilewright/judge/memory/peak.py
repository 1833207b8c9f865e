"""Peak memory of one call in a cell: on a GPU what torch's allocator held at most, on the CPU by how much the process
grew, as the kernel saw it from outside."""

from __future__ import annotations

from pathlib import Path

from ..client import Cell
from ..wire import messages as wire

_RESET_PEAK = "5"  # to /proc/PID/clear_refs: the high-water mark starts anew at what is resident now


def peak_bytes(cell: Cell, request: wire.Peak, *, limit_s: float) -> int:
    """Bytes at the peak of one call; -1 where they can't be had here. Raises CellFault when the call fails."""
    cell.do(wire.Drop(thorough=True))
    if cell.plan.device == "cuda":
        return cell.ask(request, wire.PeakBytes, limit_s=limit_s).allocated
    process = Path("/proc") / str(cell.process.pid)
    try:
        (process / "clear_refs").write_text(_RESET_PEAK)
        before = _resident(process, "VmRSS:")
        cell.ask(request, wire.PeakBytes, limit_s=limit_s)
        return max(0, _resident(process, "VmHWM:") - before)
    except (OSError, ValueError):
        return -1


def _resident(process: Path, field: str) -> int:
    for line in (process / "status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc names no {field}")
