"""A candidate whose memory is watched: by compute-sanitizer on a GPU, on a CPU by pages that can't be touched."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..edges.sandbox.sanitizer import TOOLS, run_fenced, sanitized_run
from ..edges.sandbox.under import Ran
from ..edges.toolchain.installed import cuda_tool
from ..facts.candidate import Candidate
from ..facts.outcome import Failure, Sanitized
from ..facts.problem import Target
from .build.build import lay_out
from .profile import sanitizer
from .wire import messages as wire

_PROGRAM = "compute-sanitizer"
FENCE = "guard pages"
_LARGEST_BYTES = 2 << 30  # of a case's tensors: kernels take a hundred times as long under a tool
LIMIT_S = 60.0  # for one tool
SHARE = 0.1  # of a run's time, for all tools
# Less than this no tool is begun with: to start, to import torch under it and to load kernels takes longer.
LEAST_S = 5.0
MEMCHECK, RACECHECK = TOOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitizerJob:
    """A candidate and a case, whose tensors were recorded in `folder` (judge.candidate_process.rerun.RECORDED).
    `environment`: variables that the problem reads, name and value of each."""

    candidate: Candidate
    described: wire.Described
    folder: Path
    seed: int
    environment: tuple[tuple[str, str], ...]
    device: Target = "cuda"
    tools: tuple[str, ...] = (MEMCHECK,)
    limit_s: float = LIMIT_S  # for each of them

    @property
    def setup(self) -> dict[str, object]:
        """What judge.candidate_process.rerun must know of it."""
        described = self.described
        return {
            "device": self.device, "entry": self.candidate.entry, "seed": self.seed, "init": described.init,
            "args": described.args, "gradients": wire.to_plain(described.gradients),
            "state": [s.name for s in described.state], "environment": self.environment,
        }  # fmt: skip


def absent(target: Target) -> str:
    """Why compute-sanitizer can't be run for the target; "" where it can be had."""
    if target != "cuda":
        return f"{_PROGRAM} needs a GPU"
    return "" if cuda_tool(_PROGRAM) else f"{_PROGRAM} was not found: it comes with the CUDA toolkit"


def lack(smallest: wire.Described, target: Target) -> str:
    """Why nothing can be run on a case; "" where it can."""
    if target == "cuda" and (why := absent(target)):
        return why
    if smallest.work.bytes_moved > _LARGEST_BYTES:
        tool = _PROGRAM if target == "cuda" else FENCE
        return f"{tool} was not run: the smallest case has {smallest.work.bytes_moved / 2**30:.1f} GiB"
    return ""


def watched(job: SanitizerJob, *, target: Target, say: Callable[[str], None]) -> Sanitized | Failure:
    """By the tool that the target has."""
    job = replace(job, device=target)
    return sanitize(job, say=say) if target == "cuda" else fenced(job, say=say)


def sanitize(job: SanitizerJob, *, say: Callable[[str], None], program: Sequence[str] = ()) -> Sanitized | Failure:
    """Run the job's tools; the first error in a kernel of the candidate's own is its Failure. A tool that can't be run
    here, or not to the end, is a note: that is no fault of the candidate's."""
    refused = lay_out(job.candidate, job.folder / "candidate")
    if refused is not None:
        return refused
    command = tuple(program) or (str(cuda_tool(_PROGRAM)),)
    clean: list[str] = []
    notes: list[str] = []
    for tool in job.tools:
        started = time.monotonic()
        ran = sanitized_run(command, tool, job.folder, setup=job.setup, limit_s=job.limit_s)
        found = sanitizer.reports(ran.text)
        failure = sanitizer.failure(tool, found)
        if failure is not None:
            return failure
        notes += sanitizer.remarks(tool, found)
        if ran.finished:
            clean.append(tool)
        else:
            notes.append(f"{tool} did not get to the end: {_why(ran, job.limit_s)}")
        say(f"{tool}: {'no errors' if ran.finished else _why(ran, job.limit_s)} ({time.monotonic() - started:.1f} s)")
    return Sanitized(clean=tuple(clean), notes=tuple(notes))


def fenced(job: SanitizerJob, *, say: Callable[[str], None]) -> Sanitized | Failure:
    """Run it on the CPU between pages that can't be touched: who dies of that reads or writes out of bounds. What is
    less than 64 bytes beyond a tensor whose size is no multiple of that, and what is read beyond memory of the
    candidate's own, is not seen."""
    refused = lay_out(job.candidate, job.folder / "candidate")
    if refused is not None:
        return refused
    started = time.monotonic()
    ran = run_fenced(job.folder, setup=job.setup, limit_s=job.limit_s)
    say(f"{FENCE}: {'no errors' if ran.finished else _why(ran, job.limit_s)} ({time.monotonic() - started:.1f} s)")
    if ran.signal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        name = signal.Signals(ran.signal).name
        told = f"{FENCE}: it touches memory beyond its inputs, weights or results ({name})"
        return Failure(stage="check", reason="out_of_bounds", summary=told, excerpt=ran.text[-2000:])
    if not ran.finished:
        return Sanitized(clean=(), notes=(f"{FENCE} did not get to the end: {_why(ran, job.limit_s)}",))
    return Sanitized(clean=(FENCE,))


def limit_s(budget_s: float) -> float:
    """How long the tools may take in a run with this budget; 0.0: too short for any."""
    share_s = min(LIMIT_S, SHARE * budget_s)
    return share_s if share_s >= LEAST_S else 0.0


def _why(ran: Ran, limit_s: float) -> str:
    return f"it took more than {limit_s:.0f} s" if ran.timed_out else sanitizer.why_not(ran.text)
