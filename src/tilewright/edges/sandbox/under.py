"""A process that runs a candidate on recorded arguments, under a tool: compute-sanitizer, ncu, or nothing."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .environment import cell_environment, common_environment, program
from .offspring import offspring
from .processes import kill_marked, kill_tree

_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one tool printed, the candidate's own output among it; `finished`: all calls came to their end."""

    text: str
    finished: bool
    timed_out: bool
    signal: int = 0  # that ended it


def run_under(
    tool: Sequence[str], folder: Path, *, setup: Mapping[str, object], limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> Ran:  # fmt: skip
    """Run the candidate that lies in `folder` under a tool (its command; () for none), with `variables` beside those of
    a cell. What the process may do is the process's own to take from itself, before any foreign code:
    judge.candidate_process.rerun."""
    nonce = secrets.token_hex(16)
    environment = cell_environment(folder, common_environment(threads=0, outer=os.environ)) | dict(variables or {})
    line = json.dumps({**setup, "folder": str(folder), "nonce": nonce}).encode() + b"\n"
    timed_out = False
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        with offspring(
            [*tool, *program("tilewright.judge.candidate_process.rerun")], cwd=folder, env=environment, **streams
        ) as process:
            try:
                said, _ = process.communicate(line, timeout=limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                kill_tree(process.pid)
                said, _ = process.communicate()
    finally:
        kill_marked(f"HOME={folder}/")
        if not environment["HOME"].startswith(f"{folder}/"):
            kill_marked(f"HOME={environment['HOME']}")
    text = said[-_TEXT_BYTES:].decode(errors="replace")
    signal = 0 if timed_out else max(-process.returncode, 0)
    return Ran(text=text, finished=nonce in text, timed_out=timed_out, signal=signal)
