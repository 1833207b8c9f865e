"""Our own modules: put away before a candidate is loaded, and, in a process that is confined before it imports
anything, taken from the disk before that is closed.

A candidate must run where Tilewright is not installed: in its cell `import tilewright` finds nothing. What is installed
in the same folder (of a wheel that is site-packages, where all else lies) is found as before.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from . import absent

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("facts", "ir", "judge")


class Shelf(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `judge`, `facts` and `ir` in memory."""

    def __init__(self) -> None:
        self._sources: dict[str, tuple[str, str]] = {}
        for package in _PACKAGES:
            for file in sorted((_ROOT / package).rglob("*.py")):
                name = ".".join(file.relative_to(_ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
                self._sources[name] = (str(file), file.read_text())
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        origin = self._sources[fullname][0]
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=origin.endswith("__init__.py"))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        origin, text = self._sources[module.__name__]
        exec(compile(text, origin, "exec"), module.__dict__)


def hiding_place(folder: Path) -> Path:
    """A folder in `folder` whose `sitecustomize` hides Tilewright from each Python process that starts with it on its
    path. To be made before the disk is closed."""
    place = folder / "site"
    place.mkdir(exist_ok=True)
    text = Path(absent.__file__).read_text(encoding="utf-8")
    (place / "sitecustomize.py").write_text(f"{text}\n\nstart_without({_ROOT.name!r})\n", encoding="utf-8")
    return place


def put_away(place: Path) -> None:
    """Forget Tilewright: no import finds a module of it from now on, neither here nor in a process that is forked or
    started from here, unless that leaves the environment aside (`python -I`): then the closed disk alone denies it.
    What was imported lives on, out of `sys.modules`. `place`: what `hiding_place` gave."""
    absent.hide(_ROOT.name)
    sys.modules["__main__"] = types.ModuleType("__main__")
    others = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(place), others)))
