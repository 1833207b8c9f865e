"""`tilewright clean`: old runs, and what in the cache can be made again; nothing that is in use, nothing of others'."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ..edges.in_use import alone
from ..edges.ledger import Ledger
from ..facts.errors import UserError
from ..facts.move import Stop
from .printing import Shown

What = Literal["runs", "builds", "kernels", "modules"]
WHAT: tuple[What, ...] = get_args(What)
AGAIN: tuple[What, ...] = ("kernels", "modules")  # what is made again where it is needed
JUST_USED_S = 3600.0  # a kernel that was used since may be about to be loaded

# All that a run leaves in its folder. Where anything else lies, the folder is somebody's, too.
_OF_A_RUN = ("run.db", "run.db-wal", "run.db-shm", "run.lock", "report.md", "report.html", "candidate", "candidate.new",
             "problem", "work", "export", ".stamp")  # fmt: skip
_KERNEL = re.compile(r"[\w.+-]*[0-9a-f]{16}[\w.+-]*\.(so|o)|tmp\w{6,12}\.tmp")
_MODULE = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """Something that may go: `used_unix_s` is when it was made or last used."""

    what: What
    path: Path
    size_bytes: int
    used_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stays:
    """What stays though its age or the size says otherwise, and why."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningBounds:
    """What goes: what was not used for `older_s`, and of each kind, the oldest first, what is beyond `keep_bytes`; None
    bounds nothing."""

    older_s: float | None
    keep_bytes: int | None
    unfinished: bool = False  # runs that have not ended go, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    gone: tuple[Removable, ...]
    stays: tuple[Stays, ...]
    dry: bool


def clean(
    chosen: Sequence[What], *, runs: Path, cache: Path, bounds: CleaningBounds, dry: bool, now_unix_s: float
) -> Cleaned:  # fmt: skip
    """Remove it, or only say what would be removed (`dry`). UserError where `runs` is asked for and not there."""
    if {"runs", "builds"} & set(chosen) and not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name the folder of runs with --runs")
    gone: list[Removable] = []
    stays: list[Stays] = []
    for what in dict.fromkeys(chosen):
        for item in due(found(what, runs=runs, cache=cache), bounds, now_unix_s=now_unix_s):
            why = _reason_to_stay(item, bounds, now_unix_s=now_unix_s) or _removed(item, dry=dry)
            if why:
                stays.append(Stays(path=item.path, why=why))
            else:
                gone.append(item)
    return Cleaned(gone=tuple(gone), stays=tuple(stays), dry=dry)


def due(items: Iterable[Removable], bounds: CleaningBounds, *, now_unix_s: float) -> tuple[Removable, ...]:
    """What the bounds let go, the oldest first."""
    newest = sorted(items, key=lambda item: (-item.used_unix_s, str(item.path)))
    kept_bytes, going = 0, []
    for item in newest:
        old = bounds.older_s is not None and now_unix_s - item.used_unix_s > bounds.older_s
        beyond = bounds.keep_bytes is not None and kept_bytes + item.size_bytes > bounds.keep_bytes
        if old or beyond:
            going.append(item)
        else:
            kept_bytes += item.size_bytes
    return tuple(reversed(going))


def found(what: What, *, runs: Path, cache: Path) -> Iterator[Removable]:
    if what in ("runs", "builds"):
        for where, folders, names in os.walk(runs):
            if "run.db" in names:
                folders.clear()
                run = Path(where)
                path = run if what == "runs" else run / "work"
                if not path.is_symlink() and path.is_dir():
                    yield Removable(what=what, path=path, size_bytes=size_of(path), used_unix_s=_journal_written(run))
        return
    inside = ("libraries", "cuda", "cpu") if what == "kernels" else ("modules", "backend")
    pattern = _KERNEL if what == "kernels" else _MODULE
    for folder in (cache / name for name in inside):
        for path in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
            ours = path.is_file() if what == "kernels" else path.is_dir()
            if pattern.fullmatch(path.name) and ours and not path.is_symlink():
                with contextlib.suppress(OSError):  # gone since: another process prunes, too
                    yield Removable(what=what, path=path, size_bytes=size_of(path), used_unix_s=path.stat().st_mtime)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed."""
    if not path.is_dir():
        return path.stat().st_size
    total = 0
    for where, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


def _journal_written(run: Path) -> float:
    times = [path.stat().st_mtime for path in (run / "run.db", run / "run.db-wal") if path.is_file()]
    return max(times)


def _reason_to_stay(item: Removable, bounds: CleaningBounds, *, now_unix_s: float) -> str:
    """ "" where it may go."""
    if item.what == "kernels":
        return "was used within the hour" if now_unix_s - item.used_unix_s < JUST_USED_S else ""
    if item.what == "modules":
        return ""
    run = item.path if item.what == "runs" else item.path.parent
    if item.what == "runs" and (others := sorted(set(os.listdir(run)) - set(_OF_A_RUN))):
        return f"holds {others[0]!r}, which no run leaves there"
    try:
        with Ledger(run / "run.db", readonly=True) as ledger:
            ended = any(isinstance(event.move, Stop) for event in ledger.events())
    except (UserError, sqlite3.Error, OSError):
        return "its journal can't be read"
    return (
        ""
        if ended or bounds.unfinished
        else "has not ended: `tilewright resume` continues it (--unfinished removes it)"
    )


def _removed(item: Removable, *, dry: bool) -> str:
    """Remove it, under the locks that its users take; why it stays, "" where it is gone or may go."""
    run = {"runs": item.path, "builds": item.path.parent}.get(item.what)
    locks = [item.path] if run is None else [p for p in (run / "run.lock", run / "candidate", run) if p.exists()]
    with contextlib.ExitStack() as held:
        if not all(held.enter_context(alone(path)) for path in locks):
            return "is in use"
        try:
            if not dry:
                _remove(item.path)
        except OSError as error:
            return f"can't be removed: {error.strerror or error}"
    return ""


def _remove(path: Path) -> None:
    """A folder first takes another name, so that nobody finds a part of it."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path.with_name(f".{path.name}.removed")
    path.rename(doomed)
    shutil.rmtree(doomed)


_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kMGT]?)B?")


def size(text: str, of: str) -> int:
    """`500MB`, `2GB` in bytes; UserError on anything else."""
    if not (found := _SIZE.fullmatch(text.strip())):
        raise UserError(f"{of}: {text[:60]!r} is not a size; write 500MB or 2GB")
    return int(float(found[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}[found[2]])


def shown(cleaned: Cleaned, amount: Callable[[float], str]) -> Shown:
    told = {
        "dry_run": cleaned.dry, "bytes": sum(item.size_bytes for item in cleaned.gone),
        "removed": [{"what": i.what, "path": str(i.path), "bytes": i.size_bytes} for i in cleaned.gone],
        "stays": [{"path": str(s.path), "why": s.why} for s in cleaned.stays],
    }  # fmt: skip
    verb = "would remove" if cleaned.dry else "removed"
    lines = [f"{verb} {i.path} ({amount(i.size_bytes)})" for i in cleaned.gone if i.what != "kernels"]
    kernels = [i for i in cleaned.gone if i.what == "kernels"]
    if kernels:
        lines.append(f"{verb} {len(kernels)} compiled kernels ({amount(sum(i.size_bytes for i in kernels))})")
    lines += [f"stays: {s.path} {s.why}" for s in cleaned.stays]
    lines.append(f"{verb} {len(cleaned.gone)} things, {amount(sum(i.size_bytes for i in cleaned.gone))}")
    return Shown(object=told, drawn=lines)
