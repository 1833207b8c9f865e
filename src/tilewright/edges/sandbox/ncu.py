"""Nsight Compute around a process that runs a candidate on recorded arguments, and what its reports hold.

The candidate can't reach the tool: report, home folder and section files lie where its process may not write. It is
profiled from where the process says so (cudaProfilerStart) on.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .environment import common_environment
from .under import Ran, run_under

_MOST_LAUNCHES = 40
_PAGE_LIMIT_S = 60.0
_PAGE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of which launches of the profiled call. `only`: the number of one; None: the first forty."""

    sections: tuple[str, ...]
    only: int | None = None


def command(program: Sequence[str], wanted: Wanted, report: Path) -> list[str]:
    """How the tool is called. Clocks stay as they are, as when times are taken; caches are cold at each launch."""
    which = (
        ["--launch-count", str(_MOST_LAUNCHES)] if wanted.only is None
        else ["--launch-skip", str(wanted.only), "--launch-count", "1"]
    )  # fmt: skip
    sections = [part for name in wanted.sections for part in ("--section", name)]
    return [
        *program, "--target-processes", "application-only", "--profile-from-start", "off", "--clock-control", "none",
        "--cache-control", "all", "--replay-mode", "kernel", "--apply-rules", "no", *which, *sections,
        "--force-overwrite", "--export", str(report),
    ]  # fmt: skip


def profiled_run(
    program: Sequence[str], wanted: Wanted, folder: Path, report: Path, *, setup: Mapping[str, object], limit_s: float
) -> Ran:
    """Run the candidate that lies in `folder` once more, and have the report written to `report`."""
    with tempfile.TemporaryDirectory(dir=report.parent, prefix="home-") as home:
        asked = {**setup, "profiled": True, "home": f"{folder}/home"}
        called = command(program, wanted, report)
        return run_under(called, folder, setup=asked, limit_s=limit_s, variables={"HOME": home})


def page(program: Sequence[str], report: Path, name: str) -> str:
    """A page of a report ("raw", "details", "source") as CSV; "" where the tool can't make it."""
    with tempfile.TemporaryDirectory(dir=report.parent, prefix="home-") as home:
        environment = common_environment(threads=0, outer=os.environ) | {"HOME": home}
        rules = ["--apply-rules", "yes"] if name == "details" else []
        try:
            done = subprocess.run(
                [*program, "--import", str(report), "--csv", "--page", name, "--print-units", "base",
                 "--print-kernel-base", "demangled", *rules],
                capture_output=True, timeout=_PAGE_LIMIT_S, check=False, cwd=home, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ""
    return done.stdout[:_PAGE_BYTES].decode(errors="replace") if done.returncode == 0 else ""
