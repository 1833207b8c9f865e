"""Compiling ahead: the kernels of our own candidates, in parallel and before a device is leased for them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.pattern import Choice
from .children import shared_out


def compiled_ahead(
    candidate: Candidate, choices: Iterable[Choice], *, folder: Path, jobs: int, arch: str = "", processors: int = 0
) -> tuple[Path, ...]:
    """The compiled kernels of the candidate at these choices, `jobs` compiled at a time, kept in `folder` from run to
    run: libraries of C++, or objects for a GPU of the architecture with so many multiprocessors. What does not compile
    is left out: it fails in the cell, too, and is recorded there. A candidate of somebody else's has none."""
    wanted = tuple(dict.fromkeys(choices))
    sources = {Path(f.path).stem: f.text for f in candidate.files if f.path.endswith(".cpp")}
    if in_cpp := [choice for choice in wanted if choice.pattern in sources]:
        return _in_cpp(sources, in_cpp, folder, jobs)
    files = {f.path for f in candidate.files}
    if arch and (fused := [choice for choice in wanted if f"{choice.pattern}.py" in files]):
        return _in_cute(candidate, fused, folder, jobs, arch, processors)
    return ()


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


def _in_cute(
    candidate: Candidate, wanted: Sequence[Choice], folder: Path, jobs: int, arch: str, processors: int
) -> tuple[Path, ...]:
    """In child processes, from copies of the candidate's own files: an object is kept under a digest of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tilewright-ahead-") as made:
        root = Path(made)
        for file in candidate.files:
            place = root / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(file.text, encoding="utf-8")
        (root / "build").symlink_to(folder.resolve(), target_is_directory=True)
        tasks = [[str(root / f"{choice.pattern}.py"), dict(choice.point)] for choice in wanted]
        asked = {"arch": arch, "processors": processors}
        answers = shared_out("tilewright.kernels.cuda.ahead", asked, tasks, folder=root, jobs=jobs)
        objects = (path for answer in answers for path in _objects(answer))
        return tuple(dict.fromkeys(folder / Path(path).name for path in objects))


def _objects(answer: str) -> list[str]:
    try:
        found = json.loads(answer).get("objects", [])
    except ValueError:
        return []
    return [str(path) for path in found]
