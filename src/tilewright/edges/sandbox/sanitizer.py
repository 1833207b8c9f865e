"""A process that runs a candidate on recorded arguments: under compute-sanitizer, or between pages out of bounds."""

from __future__ import annotations

import ctypes.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from .under import Ran, run_under

TOOLS: Mapping[str, tuple[str, ...]] = {
    # torch asks the driver for what it may not have, and goes on; what lies behind a block is else another one
    "memcheck": ("--report-api-errors", "no", "--padding", "512"),
    "racecheck": ("--racecheck-report", "analysis"),
}
_MOST_ERRORS = 20


def sanitized_run(
    program: Sequence[str], tool: str, folder: Path, *, setup: Mapping[str, object], limit_s: float
) -> Ran:
    """Run the candidate that lies in `folder` under one tool of `program` (compute-sanitizer's path). Every tensor gets
    a block of the device's memory of its own, so that the first element beyond one is beyond its allocation."""
    command = [
        *program, "--tool", tool, *TOOLS[tool], "--show-backtrace", "no", "--print-limit", str(_MOST_ERRORS),
    ]  # fmt: skip
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return run_under(command, folder, setup=setup, limit_s=limit_s, variables=alone)


def run_fenced(folder: Path, *, setup: Mapping[str, object], limit_s: float) -> Ran:
    """Run the candidate that lies in `folder` on the CPU, its inputs and weights between pages that can't be touched,
    and, where glibc has it, with an allocator that looks behind each block when it is freed."""
    debug = ctypes.util.find_library("c_malloc_debug")
    more = {"LD_PRELOAD": debug, "MALLOC_CHECK_": "3"} if debug else {}
    return run_under((), folder, setup={**setup, "fence": True}, limit_s=limit_s, variables=more)
