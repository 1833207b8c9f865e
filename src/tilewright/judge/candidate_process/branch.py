"""A branch of the fork server: it imports more than the server has, once, and forks what runs on that.

Modules are imported that are installed, that are ours, or that lie in a folder which the judge has written: nothing of
the user's, and nothing of a candidate's.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from .confine import adopt_orphans
from .load import installed_paths

_PACKAGE = Path(__file__).resolve().parents[2]
_KEEPS_FOLDERS = "torch._inductor.codecache"  # of the process that imports it; each cell has its own


def branched(asked: Mapping[str, Any], control: int) -> tuple[socket.socket, str]:
    """Become a server that has imported what `asked` names, in its environment and with its `folder` first on the path.
    The second value says why what it forks can't run on that; "" where it can."""
    threads, kept = set(_threads()), _KEEPS_FOLDERS in sys.modules
    os.setsid()
    adopt_orphans()
    _enter(asked)
    gc.disable()  # nearly all that is imported stays
    for name in asked["imports"]:
        with contextlib.suppress(Exception, SystemExit):  # whoever needs it meets the same, and can tell of it
            if _may_be_imported(name, asked["folder"]):
                importlib.import_module(name)
    spoilt = ""
    if _has_started_cuda():
        spoilt = "it has started CUDA, which a fork can't use"
    elif started := sorted({name for number, name in _threads().items() if number not in threads}):
        spoilt = f"it has started threads ({', '.join(started[:3])}), which a fork does not take along"
    elif not kept and _KEEPS_FOLDERS in sys.modules:
        spoilt = "torch's compiler was imported, which keeps the folders that it finds then"
    gc.collect()
    gc.freeze()
    gc.enable()
    return socket.socket(fileno=control), spoilt


def run(asked: Mapping[str, Any], given: int, output: int) -> NoReturn:
    """Run a module as a process of its own: `given` is its standard input, and what it prints goes to `output`."""
    os.setsid()
    errors = os.open(os.devnull, os.O_WRONLY)
    for number, descriptor in enumerate((given, output, errors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    code = 1
    try:
        _enter(asked)
        os.chdir(asked["folder"])
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _enter(asked: Mapping[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    if asked["folder"] and asked["folder"] not in sys.path:
        sys.path.insert(0, asked["folder"])


def _may_be_imported(name: str, folder: str) -> bool:
    found = importlib.util.find_spec(name.partition(".")[0])
    if found is None:
        return False
    places = (*installed_paths(), f"{_PACKAGE}{os.sep}", *([folder + os.sep] if folder else []))
    files = [found.origin] if found.origin else list(found.submodule_search_locations or ())  # of a namespace package
    return bool(files) and all(file.startswith(places) for file in files)


def _threads() -> dict[str, str]:
    """The names of this process's threads, by number."""
    found = {}
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            found[number] = Path(f"/proc/self/task/{number}/comm").read_text().strip()
    return found


def _has_started_cuda() -> bool:
    """Whether the driver's device for unified memory is open: it is from cuInit on. What only counts devices opens
    others, and disturbs no fork."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is closed
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia-uvm"):
                return True
    return False
