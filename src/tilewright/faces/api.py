"""The Python API: a live module in, a drop-in replacement and its report out."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from torch import nn

from ..edges.gpu.machine import default_target, threads
from ..edges.sandbox.forkserver import start_ahead
from ..facts.candidate import Candidate
from ..facts.errors import HarnessError, TooBusy, UserError
from ..facts.problem import Mode, Precision, Problem, Target
from ..facts.run import Request
from ..judge.build import load_candidate
from ..report import markdown
from ..run.optimize import begun, judge_given, new_run, resume, sanitized_by_default
from ..run.optimize import optimize as run
from ..run.places import Places
from . import config
from .capture import is_same, packages_of, write_examples, write_problem
from .deliver import delivered
from .examples import examples_of, module_of
from .exports import exported
from .live import compiled_by_torch, fallbacks, load, replacement
from .open_shapes import open_shapes
from .printing import say as progress
from .reading import problem_of
from .trees import trees_of

Say = Callable[[str], None]
TORCH_COMPILE = "torch_compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """`module` computes what the given one does and has the same `state_dict` keys (parameters shared with it); it *is*
    the given one unless `status` is "improved", or "torch_compile": then it is the given one under torch.compile, which
    was timed beside what was judged and is faster (`summary["theirs"]` is the mode; its results were not judged).
    `summary` is what `optimize --json` prints, `report` is Markdown.

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

    def export(self, folder: str | Path, *, name: str, version: str = "0", archs: Sequence[str] = ()) -> Path:
        """Write the package `name` and its wheel into `folder`, with all kernels compiled: for this machine's
        processor, or for the GPUs of `archs` (none given: sm_90a). Returns the wheel. `name.load(module)` then needs
        torch and tvm-ffi alone. Raises UserError where nothing was improved, or for what can't be exported."""
        if self.status != "improved":
            raise UserError(f"nothing of ours to export: the run ended with {self.status.replace('_', ' ')!r}")
        return exported(self.folder, name=name, out=Path(folder), version=version, archs=archs).wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    accepted: bool
    summary: dict[str, Any]
    report: str
    folder: Path


def optimize(
    module: nn.Module,
    example_inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    target: Literal["auto", "cuda", "cpu"] = "auto",
    out: str | Path | None = None,
    budget: str | float = "5m",
    timing: str = "6s",
    compiled: bool | str = True,
    seed: int = 0,
    precision: Precision = "reference",
    mode: Mode | None = None,
    algebra: bool = True,
    env: Sequence[str] = (),
    say: Say | None = None,
) -> Optimized:
    """Optimise a live module for calls like `module(*example_inputs, **kwargs)`: a tuple of tensors, numbers, strings,
    None, and containers of them (also of classes that torch.utils._pytree knows, which results may be, too); one tensor
    stands for itself, a dict for arguments by name. For several kinds of calls: a list of such tuples and dicts, the
    main one first. The result takes its arguments by position or by name, as forward does.

    `dynamic_shapes`, as torch.export takes them, with a `torch.export.Dim(NAME, min=LEAST, max=GREATEST)` for each open
    size, or True for those that differ between the examples: one result then holds throughout their ranges, if the
    module computes the same there, and is judged at several sizes, some of them hidden.

    The module is judged in other processes, in the train/eval state it is in. `out` is the folder of the run (a new
    temporary one by default); where it holds a run of this module, stopped or ended, that one goes on with the settings
    that it has, and nothing is done twice. `budget` ("90s", "5m", or a number of seconds) bounds the run. A
    candidate is timed for `timing`, or longer where noise may hide a gain, against eager, and where `compiled` against
    torch.compile too, in modes that a text names, by commas or "all" (True: the usual ones). `mode` of "training": with
    the backward pass (None: inference). Without `algebra` the amount of work stays as it is (docs/precision.md). `env`
    names variables of the environment that the module's processes see. `say` is told of progress; None: it is printed
    where stderr is a terminal. The reports, `report.md` and `report.html`, are written into the folder.

    Raises UserError for what the caller can mend (Lack, a kind of it: the machine lacks something), and HarnessError
    where Tilewright or the machine fails; kinds of that are TooBusy (others keep the processors) and SickDevice. The
    folder of the run is TooBusy's `folder`, and stands in a note of the others: with it for `out`, a call goes on."""
    say = say or progress(not sys.stderr.isatty())
    module, examples = module_of(module), examples_of(example_inputs, kwargs)
    chosen = _chosen(target)
    packages = None if env else packages_of(module)
    start_ahead(threads() if chosen == "cpu" else 0, chosen, packages)  # cells' servers import torch meanwhile
    trees, folder = trees_of(module, examples), _folder(out)
    shapes = open_shapes(module, examples, dynamic_shapes)
    if chosen == "cuda":  # what the result's kernels import, beside nothing that keeps this process busy
        Thread(target=_imported, args=("cutlass.cute",), daemon=True).start()
    places = Places(out=folder, cache=config.cache_dir())
    budget_s = config.seconds(budget, "budget")
    timed = config.timed(timing, compiled=compiled, of="timing", modes_of="compiled")
    wanted = _Wanted(target=chosen, precision=precision, mode=mode, env=tuple(env))
    with _way_on(folder, "optimize"):
        if _goes_on(places, partial(write_examples, module, examples, trees, shapes=shapes), module, wanted):
            finished = resume(places=places, say=say)
        else:
            problem = wanted.captured(module, write_examples(module, examples, trees, folder / "problem", shapes))
            asked = Request(
                run=new_run(), problem=problem, strategy="catalog", budget_s=budget_s, seed=seed, algebra=algebra,
                timing=timed, sanitize=sanitized_by_default(problem),
            )  # fmt: skip
            finished = run(asked, places=places, say=say)
    found = delivered(finished, folder).summary
    status = TORCH_COMPILE if found["theirs"] else str(found["status"])
    if status == TORCH_COMPILE:
        module = compiled_by_torch(module, str(found["theirs"]))
    elif status == "improved":
        module = replacement(module, places.candidate, trees)
    return Optimized(
        module=module,
        status=status,
        summary=found,
        report=markdown(finished.context, finished.events, folder=str(folder)),
        folder=folder,
    )


def evaluate(
    reference: nn.Module | str | Path,
    candidate: str | Path | Candidate,
    example_inputs: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: Literal["auto", "cuda", "cpu"] = "auto",
    out: str | Path | None = None,
    timing: str = "6s",
    compiled: bool | str = True,
    seed: int = 0,
    precision: Precision = "reference",
    mode: Mode | None = None,
    env: Sequence[str] = (),
    say: Say | None = None,
) -> Evaluated:
    """Judge a candidate (a file or folder with `ModelNew`) against a problem file, a robust-kbench task folder (then
    also a `.cu` file), or a live module with examples, as `optimize` takes them. `mode` of None: what the problem says,
    else inference. Raises as `optimize` does; after TooBusy another call with the same `out` judges anew."""
    folder, say = _folder(out), say or progress(not sys.stderr.isatty())
    wanted = _Wanted(target=_chosen(target), precision=precision, mode=mode, env=tuple(env))
    with _way_on(folder, "evaluate"):
        if isinstance(reference, nn.Module):
            written = write_problem(reference, example_inputs, folder / "problem", kwargs=kwargs)
            problem = wanted.captured(reference, written)
        else:
            problem = wanted.problem(Path(reference), warn=say)
        given = candidate if isinstance(candidate, Candidate) else load_candidate(Path(candidate), problem)
        finished = judge_given(
            problem, given, places=Places(out=folder, cache=config.cache_dir()), seed=seed, say=say,
            timing=config.timed(timing, compiled=compiled, of="timing", modes_of="compiled"),
        )  # fmt: skip
    return Evaluated(
        accepted=finished.stop.best is not None,
        summary=delivered(finished, folder).summary,
        report=markdown(finished.context, finished.events, folder=str(folder)),
        folder=folder,
    )


def _folder(out: str | Path | None) -> Path:
    return Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="tilewright-"))


def _imported(name: str) -> None:
    with suppress(ImportError):  # who needs it says so
        importlib.import_module(name)


def _chosen(target: Literal["auto", "cuda", "cpu"]) -> Target:
    return default_target() if target == "auto" else target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """How a caller wants a problem to be judged."""

    target: Target
    precision: Precision
    mode: Mode | None
    env: tuple[str, ...]

    def problem(self, path: Path, *, warn: Callable[[str], object] = lambda text: None) -> Problem:
        return problem_of(
            path, target=self.target, precision=self.precision, mode=self.mode, env=self.env, warn=warn
        )  # fmt: skip

    def captured(self, module: nn.Module, path: Path) -> Problem:
        """The problem file of a module, under the name of its class."""
        return replace(self.problem(path), name=type(module).__name__)


def _goes_on(places: Places, write: Callable[[Path], Path], module: nn.Module, wanted: _Wanted) -> bool:
    """Whether a run of this very module, which `write` captures, lies in the folder. Raises UserError where it is
    another one's."""
    there = begun(places)
    if there is None:
        return False
    with tempfile.TemporaryDirectory(prefix="tilewright-") as beside:
        mine = wanted.captured(module, write(Path(beside)))
    alike = replace(mine, source="", path="") == replace(there, source="", path="", name=mine.name)
    if not alike or not is_same(mine.source, there.source):
        raise UserError(
            f"{places.out}: holds a run of another module, with other inputs or another target, mode or precision; "
            "choose another out"
        )
    return True


@contextmanager
def _way_on(folder: Path, call: str) -> Iterator[None]:
    """What is raised names the folder of the run, and how it goes on."""
    try:
        yield
    except TooBusy as busy:
        way_on = f"{call}(..., out={str(folder)!r}) goes on from there"
        raise TooBusy(busy.told, lasts=busy.lasts, folder=folder, way_on=way_on) from busy
    except (HarnessError, KeyboardInterrupt) as error:
        error.add_note(f"the run lies in {folder}; {call}(..., out={str(folder)!r}) goes on from there")
        raise


__all__ = ["Candidate", "Evaluated", "Optimized", "evaluate", "fallbacks", "load", "optimize"]
