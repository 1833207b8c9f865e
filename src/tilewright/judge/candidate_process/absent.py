"""Import without one package: it is not found, wherever it lies, and all that lies beside it is.

The standard library alone is used here, and nothing is held: the code under test can reach this module's names, and the
Python processes that this code starts run its text as their `sitecustomize`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


class Without:
    """A finder of `sys.meta_path` that finds what another finder does, but for one package and what is in it."""

    def __init__(self, finder: Any, package: str) -> None:
        self._finder = finder
        self._package = package

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] == self._package:
            return None
        return self._finder.find_spec(fullname, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide(package: str) -> None:
    """From now on an import of the package raises ModuleNotFoundError, in this process and in what it forks."""
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        del sys.modules[name]
    sys.meta_path[:] = [Without(finder, package) for finder in sys.meta_path]


def start_without(package: str) -> None:
    """Hide the package while this process starts, and run the `sitecustomize` that this one stands before, if any."""
    hide(package)
    here = os.path.dirname(os.path.abspath(__file__))
    behind = [place for place in sys.path if os.path.abspath(place) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", behind)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
