"""Compiling ahead: the kernels of our own candidates, in parallel and before a device is leased for them, each once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.demand import Demand
from ..facts.device import Device
from ..facts.pattern import Choice
from ..facts.space import Point
from ..facts.time_budget import UNBOUNDED, TimeBudget
from ..kernels.nvcc import libraries, toolchain
from ..kernels.store import anonymous
from .children import LIMIT_S, shared_out

_SHARE = 0.8  # of a run's time, until which what is to be judged may be compiled
_LEAST_S = 10.0  # what is not compiled then is compiled by the cell, one after another, while it holds the device


class Objects:
    """What a run has compiled for a GPU: the objects of a fused file at a point, and what that takes, whatever settings
    its text begins with, and whatever its number is."""

    def __init__(self) -> None:
        self._names: dict[tuple[tuple[str, ...], Point], tuple[str, ...]] = {}
        self._demands: dict[tuple[tuple[str, ...], Point], Demand | str] = {}
        self.ours: set[str] = set()  # ids of candidates in CUDA C++ that this run itself wrote: nvcc may read them here

    def put(self, texts: Mapping[str, str], choice: Choice, paths: Sequence[str]) -> None:
        """`texts`: of a candidate's files by path, the pattern's among them."""
        self._names[_texts_of(texts, choice.pattern), choice.point] = tuple(Path(p).name for p in paths)

    def of(self, texts: Mapping[str, str], choice: Choice, folder: Path) -> tuple[Path, ...]:
        """As they lie in the folder; () where this was not compiled, or something of it is there no more."""
        names = self._names.get((_texts_of(texts, choice.pattern), choice.point), ())
        paths = tuple(folder / name for name in names)
        return paths if all(path.is_file() for path in paths) else ()

    def lacking(self, texts: Mapping[str, str], wanted: Sequence[Choice], folder: Path) -> list[Choice]:
        """Those that are to be compiled, one of each kernel, those first that a compiler takes longest for."""
        first: dict[tuple[tuple[str, ...], Point], Choice] = {}
        for choice in wanted:
            if not self.of(texts, choice, folder):
                first.setdefault((_texts_of(texts, choice.pattern), choice.point), choice)
        return [first[key] for key in sorted(first, key=lambda key: _effort(key[0]), reverse=True)]

    def note(self, texts: Mapping[str, str], choice: Choice, demand: Demand | str) -> None:
        """What it takes, or why it does not compile."""
        self._demands[_texts_of(texts, choice.pattern), choice.point] = demand

    def demand(self, texts: Mapping[str, str], choice: Choice) -> Demand | str | None:
        """What was noted; None where it was not compiled yet."""
        return self._demands.get((_texts_of(texts, choice.pattern), choice.point))


def _texts_of(texts: Mapping[str, str], pattern: str) -> tuple[str, ...]:
    files = (f"{pattern}.py", f"{pattern}_rows.py", f"{pattern}_sums.py")
    return tuple(anonymous(texts[file]) for file in files if file in texts)


def _effort(texts: tuple[str, ...]) -> tuple[bool, int]:
    """How much work a fused file is for a compiler: more where it is built of matrix instructions, then by length."""
    whole = "".join(texts)
    return any(f"cuda.{kind}." in whole for kind in ("gemm", "conv")), len(whole)


def compiled_ahead(
    candidate: Candidate, choices: Iterable[Choice], *, folder: Path, jobs: int, device: Device,
    objects: Objects | None = None, time: TimeBudget = UNBOUNDED,
) -> tuple[Path, ...]:  # fmt: skip
    """The compiled kernels of the candidate at these choices, `jobs` compiled at a time, kept in `folder` from run to
    run: libraries of C++, or objects for the device, a GPU; `objects` knows of
    those that this run has compiled before, and grows. What does not compile is left out: it fails in the cell, too,
    and is recorded there. A candidate of somebody else's has none."""
    wanted = tuple(dict.fromkeys(choices))
    sources = {Path(f.path).stem: f.text for f in candidate.files if f.path.endswith(".cpp") and "/" not in f.path}
    if in_cpp := [choice for choice in wanted if choice.pattern in sources]:
        return _in_cpp(sources, in_cpp, folder, jobs)
    files = {f.path for f in candidate.files}
    if device.target == "cuda" and (fused := [choice for choice in wanted if f"{choice.pattern}.py" in files]):
        known = objects if objects is not None else Objects()
        texts = {f.path: f.text for f in candidate.files}
        if missing := known.lacking(texts, fused, folder):
            limit_s = time.limit_s(LIMIT_S, share=_SHARE, least_s=_LEAST_S)
            _compile_in_cute(candidate, missing, folder, jobs, device, known, limit_s)
        return tuple(dict.fromkeys(path for choice in fused for path in known.of(texts, choice, folder)))
    return ()


def built_by_nvcc(
    candidates: Iterable[Candidate], *, headers: str, folder: Path, jobs: int, objects: Objects
) -> tuple[Path, ...]:
    """The libraries of the CUDA C++ files of those that this run wrote, `jobs` built at a time, kept in `folder` from
    run to run, those of each toolchain by themselves; what does not build fails in the cell, too."""
    ours = [c for c in candidates if c.id in objects.ours and any(f.path.endswith(".cu") for f in c.files)]
    with tempfile.TemporaryDirectory(prefix="tilewright-ahead-") as made:
        sources = []
        for number, candidate in enumerate(ours):
            for file in candidate.files:
                if file.path.endswith(".cu"):
                    sources.append(Path(made) / f"{number}_{Path(file.path).name}")
                    sources[-1].write_text(file.text, encoding="utf-8")
        built = libraries(sources, headers, [folder / f"nvcc-{toolchain(headers)}"], jobs=jobs) if sources else []
    return tuple(dict.fromkeys(path for path in built if isinstance(path, Path)))


# ---- C++


def _in_cpp(sources: dict[str, str], wanted: Sequence[Choice], folder: Path, jobs: int) -> tuple[Path, ...]:
    with tempfile.TemporaryDirectory(prefix="tilewright-ahead-") as made, ThreadPoolExecutor(jobs) as pool:
        for name, text in sources.items():
            (Path(made) / f"{name}.cpp").write_text(text)
        found = pool.map(lambda choice: _compiled(Path(made), choice, folder), wanted)
        return tuple(dict.fromkeys(library for libraries in found for library in libraries))


def _compiled(sources: Path, choice: Choice, folder: Path) -> Iterator[Path]:
    from ..kernels.cpu.build import BuildError, build, macros  # it brings torch along

    try:
        yield build(sources / f"{choice.pattern}.cpp", macros(dict(choice.point)), folder=folder)
        second = sources / f"{choice.pattern}_sums.cpp"  # adds up what the first has summed in parts; it has no knobs
        if second.exists():
            yield build(second, {}, folder=folder)
    except BuildError:
        return


# ---- CuTe


def _compile_in_cute(
    candidate: Candidate, wanted: Sequence[Choice], folder: Path, jobs: int, device: Device, objects: Objects,
    limit_s: float,
) -> None:  # fmt: skip
    texts = {f.path: f.text for f in candidate.files}
    answers = answers_of(
        "tilewright.kernels.cuda.common.ahead", texts, wanted, folder=folder, jobs=jobs, device=device, limit_s=limit_s
    )  # fmt: skip
    for choice, answer in zip(wanted, answers, strict=True):
        if paths := paths_in(answer):
            objects.put(texts, choice, paths)


def answers_of(
    module: str, texts: Mapping[str, str], wanted: Sequence[Choice], *, folder: Path, jobs: int,
    device: Device, limit_s: float = LIMIT_S,
) -> list[str]:  # fmt: skip
    """What the script says of each choice, or "": run in child processes on copies of these files, which keep in
    `folder` what they compile."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tilewright-ahead-") as made:
        root = Path(made)
        for path, text in texts.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        (root / "build").symlink_to(folder.resolve(), target_is_directory=True)
        tasks = [[str(root / f"{choice.pattern}.py"), dict(choice.point)] for choice in wanted]
        imports = list(dict.fromkeys(choice.pattern for choice in wanted))
        return shared_out(
            module, device.plan_facts, tasks, folder=root, jobs=jobs, limit_s=limit_s, imports=imports
        )  # fmt: skip


def paths_in(answer: str) -> list[str]:
    """The objects that a child's answer names."""
    try:
        found = json.loads(answer).get("objects", [])
    except ValueError:
        return []
    return [str(path) for path in found]
