"""Our own modules: put away before a candidate is loaded, and, in a process that is confined before it imports
anything, taken from the disk before that is closed.

A candidate must run where Tilewright is not installed: in its cell `import tilewright` finds nothing.
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

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("cell", "facts")


class Shelf(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `cell` and `facts` in memory."""

    def __init__(self) -> None:
        self._sources: dict[str, tuple[str, str]] = {}
        for package in _PACKAGES:
            for file in sorted((_ROOT / package).glob("*.py")):
                name = f"{_ROOT.name}.{package}" + ("" if file.stem == "__init__" else f".{file.stem}")
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


def put_away() -> None:
    """Forget Tilewright: no module of it can be imported from now on, neither here nor in a process started from here.
    What was imported lives on, out of `sys.modules`."""
    for name in [n for n in sys.modules if n.partition(".")[0] == _ROOT.name]:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    own = str(_ROOT.parent)
    sys.path[:] = [p for p in sys.path if os.path.realpath(p) != own]
    sys.path_importer_cache.pop(own, None)
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and os.path.realpath(p) != own]
    os.environ["PYTHONPATH"] = os.pathsep.join(others)
