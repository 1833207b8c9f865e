"""compute-sanitizer around a process that runs a candidate on recorded arguments."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .environment import cell_environment, common_environment
from .processes import kill_marked, kill_tree

TOOLS: Mapping[str, tuple[str, ...]] = {
    # torch asks the driver for what it may not have, and goes on; what lies behind a block is else another one
    "memcheck": ("--report-api-errors", "no", "--padding", "512"),
    "racecheck": ("--racecheck-report", "analysis"),
}
_MOST_ERRORS = 20
_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one tool printed, the candidate's own output among it; `finished`: all calls came to their end."""

    text: str
    finished: bool
    timed_out: bool


def run_under(program: Sequence[str], tool: str, folder: Path, *, setup: Mapping[str, object], limit_s: float) -> Ran:
    """Run the candidate that lies in `folder` under one tool of `program` (compute-sanitizer's path). Every tensor gets
    a block of the device's memory of its own, so that the first element beyond one is beyond its allocation."""
    nonce = secrets.token_hex(16)
    common = common_environment(threads=0, outer=os.environ)
    environment = cell_environment(folder, common) | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    process = subprocess.Popen(
        [*program, "--tool", tool, *TOOLS[tool], "--show-backtrace", "no", "--print-limit", str(_MOST_ERRORS),
         sys.executable, "-m", "tilewright.cell.rerun"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
        env=environment,
    )  # fmt: skip
    line = json.dumps({**setup, "folder": str(folder), "nonce": nonce}).encode() + b"\n"
    timed_out = False
    try:
        said, _ = process.communicate(line, timeout=limit_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        kill_tree(process.pid)
        said, _ = process.communicate()
    finally:
        kill_marked(f"HOME={folder}/")
    text = said[-_TEXT_BYTES:].decode(errors="replace")
    return Ran(text=text, finished=nonce in text, timed_out=timed_out)
