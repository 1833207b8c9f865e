"""What a candidate's cell may open: programs, libraries, devices and its own folder; nothing else of the user's.

Not the problem, other runs, the home folder, other people's temporary files; nor Tilewright itself, since candidates
must run where it is not installed. What lies hidden inside a place that must be readable is cut out of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .landlock import LIST, READ, WRITE, Grant

_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/sys", "/proc", "/nix/store", "/gnu/store",
    "/run/opengl-driver", "/run/nvidia",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "nvidia*", "dxg")
_FOLDERS_IN = ("CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_LISTS_IN = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_TOOLS = ("nvcc", "g++", "c++", "gcc", "cc", "clang++", "ninja", "ld")  # they need more than the folder they lie in
_OWN = Path(__file__).resolve().parents[2]
_KEYS = "ssh"  # the folder of /etc whose name everybody may see and whose files only root


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskView:
    """`own`: what may be written, the cell's private folder first; `hidden`: files and folders that must not be read,
    whatever they lie in; `shared_memory`: whether /dev/shm may be written."""

    own: tuple[str, ...]
    hidden: tuple[str, ...]
    shared_memory: bool


def grants(view: DiskView, environment: Mapping[str, str]) -> tuple[Grant, ...]:
    """All that a cell with this environment may open."""
    needed = _resolved([*_SYSTEM, sys.prefix, sys.base_prefix, *_mapped()])
    hidden = _hidden(view, needed)
    wanted = [*needed, *_resolved(_named(environment)), *_resolved(_settings())]
    found = [grant for place in dict.fromkeys(wanted) for grant in _without(place, hidden)]
    found += [Grant("/dev", LIST), Grant("/proc/self", READ | WRITE)]
    found += [Grant(p, READ | WRITE) for p in view.own]
    found += [Grant(str(p), READ | WRITE) for pattern in _DEVICES for p in Path("/dev").glob(pattern)]
    if os.path.isdir("/dev/shm"):
        found.append(Grant("/dev/shm", READ | WRITE if view.shared_memory else LIST))
    return tuple(found)


def _resolved(places: Iterable[str]) -> list[Path]:
    """Those that exist, each once, without symbolic links."""
    named = dict.fromkeys(places)  # a library is mapped in pieces, and its folder holds others: links are followed once
    return [
        Path(p) for p in dict.fromkeys(os.path.realpath(p) for p in named if os.path.isabs(p) and os.path.exists(p))
    ]


def _mapped() -> Iterator[str]:
    """The folders of the libraries that this interpreter runs on."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place = line.split(maxsplit=5)[-1]
        if place.startswith("/") and ".so" in place:
            yield os.path.dirname(place)


def _named(environment: Mapping[str, str]) -> Iterator[str]:
    """What the environment and Python's path name."""
    yield from (environment.get(name, "") for name in _FOLDERS_IN)
    for name in _LISTS_IN:
        yield from environment.get(name, "").split(os.pathsep)
    yield from sys.path
    for tool in _TOOLS:
        found = shutil.which(tool, path=environment.get("PATH"))
        if found:
            yield os.path.dirname(os.path.dirname(os.path.realpath(found)))


def _settings() -> Iterator[str]:
    """The entries of /etc that everybody may read, without keys."""
    for entry in os.scandir("/etc"):
        if entry.name != _KEYS and os.path.exists(entry.path) and entry.stat().st_mode & 0o004:
            yield entry.path


def _hidden(view: DiskView, needed: Sequence[Path]) -> dict[Path, frozenset[Path]]:
    """What must not be read, each with what it lies in. A hidden file takes its folder with it, unless programs lie
    in that."""
    found = {Path("/"), Path("/root"), Path("/home"), Path("/tmp"), Path("/var/tmp")}
    found |= set(_resolved([str(_OWN), *(os.path.join(p, _OWN.name) for p in sys.path)]))
    for place in map(Path, map(os.path.realpath, view.hidden)):
        folder = place if place.is_dir() else place.parent
        found.add(place if any(n == folder or folder in n.parents for n in needed) else folder)
    return {place: frozenset(place.parents) for place in found}


def _without(place: Path, hidden: Mapping[Path, frozenset[Path]]) -> Iterator[Grant]:
    """Grants to read the place, or what is in it beside the hidden: there names can be listed too."""
    if place in hidden:
        return
    inside = {h: above for h, above in hidden.items() if place in above}
    if not inside:
        yield Grant(str(place), READ)
    elif place.is_dir():
        rest = [g for child in place.iterdir() if not child.is_symlink() for g in _without(child, inside)]
        yield from (*rest, Grant(str(place), LIST)) if rest else ()
