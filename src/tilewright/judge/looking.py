"""What tools look at between two submissions: whether a candidate is right on the smallest case, what it returns
there, and what the compiler made of it. Each in a fresh process, confined like any candidate's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..facts.candidate import Candidate
from ..facts.devices import device_of
from ..facts.errors import TooBusy
from ..facts.outcome import Built, Checked, Failure, Interleaved, VariantTime
from .build.build import build, failure
from .check import draws
from .check.check import Check, RefusedByCheck, concluded
from .check.plan import secret, trials_for
from .check.trials import run as run_trials
from .client import CellFault
from .interleave_case import MOST_VARIANTS, interleaved
from .memories import DoesNotFit
from .memory.sizes import check_memory_sizes
from .objects import CodeSeen, on_a_cpu
from .opened import OpenProblem
from .prepare import seat
from .profiles import ProfileLook, by_code
from .tools import recorded_job

_MOST_SHOWN = 64  # elements
_AT = re.compile(r"(?:(\d+)\s*:(?!\d*\s*(?:,|$))\s*)?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CandidateLooks:
    """Of one open problem; each look is a process of its own, and no verdict."""

    opened: OpenProblem

    def interleave(self, candidates: Sequence[Candidate]) -> Interleaved:
        """Candidates timed in turns on the first case; the first is what the others are held against. Where others keep
        the processors, or memory does not hold them all at once, none is timed: no run ends by that."""
        try:
            with self.opened.harness_fault():
                return interleaved(self.opened, candidates)
        except (TooBusy, DoesNotFit) as error:
            told = VariantTime(time_ns=None, ratio=None, failure=f"not timed: {error}"[:500])
            return Interleaved(variants=(told,) * len(candidates[:MOST_VARIANTS]))

    def run_small(self, candidate: Candidate) -> Checked | Failure:
        """Whether it is right on the smallest case, at one draw of its own inputs."""
        opened, case = self.opened, self.opened.smallest
        try:
            with _on_smallest(opened, candidate, "running a candidate") as (built, check):
                check.memory.admit(check.cell)
                check.state.construct(case.seed)
                trials = trials_for(case.described, case.number, rng=opened.rng)[:1]
                if case.described.random:
                    draws.run(check, trials, rng=opened.rng)
                else:
                    run_trials(check, trials)
        except (_NotBuilt, RefusedByCheck) as found:
            return found.failure
        return concluded(built, check.findings, ())

    def returned(self, candidate: Candidate, at: str) -> str | Failure:
        """What its call of the smallest case gives, in words: `at` names elements, "" its statistics."""
        rng = self.opened.rng
        try:
            with _on_smallest(self.opened, candidate, "looking at a tensor") as (_, check):
                seat(check, construct_seed=self.opened.smallest.seed, seed=secret(rng))
                check.call(tag=0, slot=0, place=0, seed=secret(rng))
                return in_words(check.memory.results(0), at)
        except (_NotBuilt, RefusedByCheck) as found:
            return found.failure

    def compiled(self, candidate: Candidate) -> CodeSeen | Failure:
        """What the compiler said of it, and its machine code."""
        with self.opened.harness_fault():
            return compiled(self.opened, candidate)


class _NotBuilt(Exception):
    """A candidate can't be built, or its process came to an end."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


@contextmanager
def _on_smallest(opened: OpenProblem, candidate: Candidate, what: str) -> Iterator[tuple[Built, Check]]:
    """A candidate in a process of its own, and the check of its smallest case. Raises _NotBuilt for its fault."""
    with opened.candidate_cell() as cell:
        built = build(candidate, cell, limit_s=opened.options.limits.build_s)
        if isinstance(built, Failure):
            raise _NotBuilt(built)
        try:
            with (
                opened.harness_fault(cell), opened.turns.turn(what),
                opened.memories.memory(opened.smallest, sizes=check_memory_sizes) as memory,
            ):  # fmt: skip
                yield built, opened.check(memory, cell, opened.smallest)
        except CellFault as fault:
            raise _NotBuilt(failure("check", fault)) from fault


def in_words(outputs: Sequence[Tensor], at: str) -> str:
    """Statistics of all outputs, or the elements that `at` names ("0: 3, 8:16"); what can't be read is said."""
    if not at.strip():
        return "\n".join(f"output {n}: {_statistics(tensor)}" for n, tensor in enumerate(outputs))
    number, place = _AT.fullmatch(at.strip()).groups()  # type: ignore[union-attr]
    try:
        output = outputs[int(number or 0)]
        chosen = output[tuple(_index(part) for part in place.split(",") if part.strip())]
    except (ValueError, IndexError) as error:
        shapes = ", ".join(str(list(t.shape)) for t in outputs)
        return f'{at[:80]!r} names no elements ({error}); outputs have shapes {shapes}; write "0: 3, 8:16"'
    values = chosen.reshape(-1)[:_MOST_SHOWN].tolist()
    told = ", ".join(f"{v:.7g}" if isinstance(v, float) else str(v) for v in values)
    return f"shape {list(chosen.shape)}: {told}" + (" ..." if chosen.numel() > _MOST_SHOWN else "")


def _index(part: str) -> int | slice:
    first, colon, last = part.partition(":")
    return slice(int(first or 0), int(last) if last.strip() else None) if colon else int(first)


def _statistics(tensor: Tensor) -> str:
    told = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    if not tensor.numel():
        return f"{told}, empty"
    if tensor.is_complex() or not tensor.dtype.is_floating_point:
        first = tensor.reshape(-1)[:8].tolist()
        return f"{told}; the first are {', '.join(map(str, first))}"
    values = tensor.float() if tensor.dtype.itemsize < 4 else tensor
    finite = values[torch.isfinite(values)]
    nan = torch.isnan(values)
    parts = [f"{int(nan.sum())} NaN, {int(torch.isinf(values).sum())} infinite"]
    if finite.numel():
        parts.append(
            f"finite from {finite.min().item():.6g} to {finite.max().item():.6g}, mean {finite.mean().item():.6g}"
        )
    if bool(nan.any()):
        parts.append(f"the first NaN at {[int(i) for i in nan.nonzero()[0]]}")
    parts.append(f"the first are {', '.join(f'{v:.6g}' for v in values.reshape(-1)[:8].tolist())}")
    return "; ".join([told, *parts])


def compiled(opened: OpenProblem, candidate: Candidate) -> CodeSeen | Failure:
    """What the compiler says of a candidate that is built and run on the smallest case, and its machine code."""
    case, target = opened.smallest, opened.problem.target
    with (
        opened.cells.folder("code") as folder, opened.cells.folder("reports") as reports,
        opened.turns.turn("looking at code"),
    ):  # fmt: skip
        job = recorded_job(opened, candidate, case, folder)
        if target == "cpu":
            return on_a_cpu(job)
        look = ProfileLook(job=job, reports=reports, question="auto", say=opened.say)
        seen = by_code(look, device_of(opened.machine))
        told = [f"{k.title}: " + ", ".join(f"{m.name} {m.text}" for m in k.evidence) for k in seen.kernels]
        return CodeSeen(finished=True, said="", remarks=(), code=(*told, *seen.notes))
