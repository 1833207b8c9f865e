"""The Python API: a live module in, a drop-in replacement and its report out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..edges.gpu.machine import default_target
from ..facts.candidate import Candidate
from ..facts.problem import Mode, Precision, Problem, Target
from ..facts.run import Timing
from ..flow.optimize import Finished, judge_given
from ..flow.optimize import optimize as run
from ..flow.workbench import Places
from ..report import markdown, summary
from ..stages.build import load_candidate
from . import config
from .capture import write_problem
from .live import fallbacks, replacement
from .reading import problem_of

_quiet: Callable[[str], None] = lambda text: None  # noqa: E731  a name for silence


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """`module` computes what the given one does and has the same `state_dict` keys (parameters shared with it); it *is*
    the given one unless `status` is "improved". `summary` is what `optimize --json` prints, `report` is Markdown.

    Where something is not as it was judged (inputs, submodules, hooks, dtypes, a mode that is on; docs/design.md), a
    call runs the original forward, on the module as it is then: `fallbacks` counts that, and a RuntimeWarning says so
    the first time. `copy`, `pickle` and `torch.save` take `module` as they take the given one."""

    module: nn.Module
    status: str
    summary: dict[str, Any]
    report: str
    folder: Path

    def fallbacks(self) -> dict[str, int]:
        """How often calls of `module`, and of its copies in this process, ran the original forward, by reason."""
        return fallbacks(self.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    accepted: bool
    summary: dict[str, Any]
    report: str
    folder: Path


def optimize(
    module: nn.Module,
    example_inputs: Sequence[Any],
    *,
    target: Literal["auto", "cuda", "cpu"] = "auto",
    out: str | Path | None = None,
    budget: str = "5m",
    timing: str = "6s",
    compiled: bool = True,
    seed: int = 0,
    precision: Precision = "reference",
    algebra: bool = True,
    env: Sequence[str] = (),
    say: Callable[[str], None] = _quiet,
) -> Optimized:
    """Optimise a live module for inputs like `example_inputs` (tensors, numbers, strings or None, positional).

    The module is judged in other processes, in the train/eval state it is in. `out` is the folder of the run (a new
    temporary one by default); `budget` bounds the search. A candidate is timed for `timing`, or longer where noise may
    hide a gain, against eager, and where `compiled` against torch.compile too. Without `algebra` the amount of work
    stays as it is (docs/precision.md). `env` names variables of
    the environment that the module's processes see. Raises UserError for what the caller can
    mend."""
    folder = _folder(out)
    problem = _captured(module, example_inputs, folder, target=target, precision=precision, env=env)
    places = Places(out=folder, cache=config.cache_dir())
    finished = run(
        problem, places=places, strategy="catalog", budget_s=config.seconds(budget, "budget"), seed=seed, say=say,
        timing=Timing(budget_s=config.seconds(timing, "timing"), compiled=compiled), algebra=algebra,
    )  # fmt: skip
    found = summary(finished.brief, finished.events, candidate_dir=str(places.candidate))
    improved = found["status"] == "improved"
    return Optimized(
        module=replacement(module, places.candidate) if improved else module,
        status=str(found["status"]),
        summary=found,
        report=markdown(finished.brief, finished.events),
        folder=folder,
    )


def evaluate(
    reference: nn.Module | str | Path,
    candidate: str | Path | Candidate,
    example_inputs: Sequence[Any] = (),
    *,
    target: Literal["auto", "cuda", "cpu"] = "auto",
    out: str | Path | None = None,
    timing: str = "6s",
    compiled: bool = True,
    seed: int = 0,
    precision: Precision = "reference",
    mode: Mode | None = None,
    env: Sequence[str] = (),
    say: Callable[[str], None] = _quiet,
) -> Evaluated:
    """Judge a candidate (a file or folder with `ModelNew`) against a problem file, a robust-kbench task folder (then
    also a `.cu` file), or a live module with examples. `mode` of None: what the problem says, else inference."""
    folder = _folder(out)
    if isinstance(reference, nn.Module):
        problem = _captured(reference, example_inputs, folder, target=target, precision=precision, mode=mode, env=env)
    else:
        problem = problem_of(
            Path(reference), target=_chosen(target), precision=precision, mode=mode, env=env, warn=say
        )  # fmt: skip
    given = candidate if isinstance(candidate, Candidate) else load_candidate(Path(candidate), problem)
    finished = judge_given(
        problem, given, places=Places(out=folder, cache=config.cache_dir()), seed=seed, say=say,
        timing=Timing(budget_s=config.seconds(timing, "timing"), compiled=compiled),
    )  # fmt: skip
    return Evaluated(
        accepted=finished.stop.best is not None,
        summary=_summary(finished),
        report=markdown(finished.brief, finished.events),
        folder=folder,
    )


def _summary(finished: Finished) -> dict[str, Any]:
    return summary(finished.brief, finished.events, candidate_dir="")


def _folder(out: str | Path | None) -> Path:
    return Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="tilewright-"))


def _chosen(target: Literal["auto", "cuda", "cpu"]) -> Target:
    return default_target() if target == "auto" else target


def _captured(
    module: nn.Module,
    example_inputs: Sequence[Any],
    folder: Path,
    *,
    target: Literal["auto", "cuda", "cpu"],
    precision: Precision,
    mode: Mode | None = None,
    env: Sequence[str] = (),
) -> Problem:
    path = write_problem(module, example_inputs, folder / "problem")
    return problem_of(path, target=_chosen(target), precision=precision, mode=mode, env=env)


__all__ = ["Candidate", "Evaluated", "Optimized", "evaluate", "fallbacks", "optimize"]
