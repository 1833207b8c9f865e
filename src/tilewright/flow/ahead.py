"""Compiling ahead: the kernels of our own candidates, in parallel and before a device is leased for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..facts.candidate import Candidate
from ..facts.pattern import Choice


def compiled_ahead(candidate: Candidate, choices: Iterable[Choice], *, folder: Path, jobs: int) -> tuple[Path, ...]:
    """The libraries of the candidate's C++ kernels at these choices, `jobs` compiled at a time, kept in `folder` from
    run to run. What does not compile is left out: it fails in the cell, too, and is recorded there. A candidate
    without C++ kernels has none."""
    sources = {Path(f.path).stem: f.text for f in candidate.files if f.path.endswith(".cpp")}
    wanted = [choice for choice in dict.fromkeys(choices) if choice.pattern in sources]
    if not wanted:
        return ()
    with tempfile.TemporaryDirectory(prefix="tilewright-ahead-") as made, ThreadPoolExecutor(jobs) as pool:
        for name in {choice.pattern for choice in wanted}:
            (Path(made) / f"{name}.cpp").write_text(sources[name])
        found = pool.map(lambda choice: _compiled(Path(made), choice, folder), wanted)
        return tuple(dict.fromkeys(library for libraries in found for library in libraries))


def _compiled(sources: Path, choice: Choice, folder: Path) -> Iterator[Path]:
    from ..kernels.cpu.build import BuildError, build, macros  # it brings torch along

    try:
        yield build(sources / f"{choice.pattern}.cpp", macros(dict(choice.point)), folder=folder)
    except BuildError:
        return
