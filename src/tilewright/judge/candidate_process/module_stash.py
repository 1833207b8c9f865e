"""Our own modules, put away before a candidate is loaded.

A candidate must run where Tilewright is not installed: in its cell `import tilewright` finds nothing. What is installed
in the same folder (of a wheel that is site-packages, where all else lies) is found as before.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

from . import absent

_ROOT = Path(__file__).resolve().parents[2]


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
