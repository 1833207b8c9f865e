"""Renders Programs (for CUDA by default) into a folder and imports them, as a candidate's `model.py` would."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fakes.realisers import cuda
from tilewright.facts.space import Point
from tilewright.ir.program import Program

_numbers = itertools.count()


def load_fused(
    program: Program, folder: Path, point: Point | None = None, name: str = "fused", *, renderer: Any = cuda,
    numbered: bool = True,
) -> ModuleType:  # fmt: skip
    """The module rendered at `point` (the space's first by default); skeleton files go into `folder` too. A name that
    is not `numbered` is the caller's to keep apart, and the same in every process."""
    name = f"{name}_{next(_numbers)}" if numbered else name
    point = point or renderer.space(program).points[0]
    for file in (*renderer.skeleton_files([program]), *renderer.render(program, name, point)):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != file.text:
            path.write_text(file.text, encoding="utf-8")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
