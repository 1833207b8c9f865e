"""`tilewright site`: pages of many runs in a folder that any web server can host, made anew where something changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ..edges.ledger import make_folder
from ..facts.errors import UserError
from ..facts.version import VERSION
from ..report.site import Entry, File, ResultSource, Site, sources
from ..report.site.entries import Group, SourceReading, read
from ..report.site.folders import INDEX
from .printing import Shown

_FORMAT = 1
_MANY = 100  # sources, from which on processes are worth their start


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a call came to: how many entries the site has, how many files it has, and how many of them were written."""

    site: Site
    files: int
    written: int
    removed: int


@dataclass(slots=True)
class Memory:
    """What earlier calls read, by the digest of its source, and the files that they made."""

    readings: dict[str, SourceReading] = field(default_factory=dict)
    files: frozenset[str] = frozenset()
    now: dict[str, SourceReading] = field(default_factory=dict)
    drawn: dict[Path, str] = field(default_factory=dict)  # the ids under which runs were drawn by this call
    written: int = 0

    def look(self, found: Sequence[ResultSource], out: Path, pool: Executor | None) -> None:
        """Read what is new, or not as it was, and draw the runs among it."""
        digests = {source: digest for source in found if (digest := _digest(source))}
        fresh = [s for s, digest in digests.items() if digest not in self.readings]
        outs = [out] * len(fresh)
        came = pool.map(_read_and_draw, fresh, outs, chunksize=4) if pool else map(_read_and_draw, fresh, outs)
        read_now = dict(zip(fresh, came, strict=True))
        for source, digest in digests.items():
            reading, written = read_now[source] if source in read_now else (self.readings[digest], 0)
            self.now[digest] = reading
            self.written += written
            if source in read_now and any(entry.kind == "run" for entry in reading.entries):
                self.drawn[source.path] = reading.entries[0].id

    def reading(self, source: ResultSource) -> SourceReading:
        return self.now.get(_digest(source)) or read(source)

    def has(self, site: Site, entry: Entry, out: Path) -> bool:
        """Whether the pages of a run are there as they should be."""
        drawn = [at for at, id in self.drawn.items() if id == entry.id]
        if drawn:  # where several have one id, each may have been drawn in the place of another
            return drawn == [site.places[entry.id]]
        return site.places[entry.id] not in self.drawn and all(
            path in self.files and (out / path).is_file() for path in site.paths_of(entry)
        )


def _digest(source: ResultSource) -> str:
    """ "" where it can't be read."""
    try:
        return source.digest()
    except OSError:
        return ""


def write_site(folders: Sequence[Path], out: Path, *, say: Callable[[str], None]) -> Made:
    """Write the site of these folders to `out`; pages of runs that are as they were stay. UserError where `out` holds
    something else, or a folder is missing."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / INDEX).is_file())):
        raise UserError(f"{out}: holds something that is no site; choose another --out")
    memory, found = _remembered(out / INDEX), sources(folders)
    make_folder(out)
    if not (out / INDEX).exists():
        (out / INDEX).write_text("{}")  # what is interrupted goes on in the same folder
    say(f"{len(found)} sources")
    with _pool(len(found)) as pool:
        memory.look(found, out, pool)
    site = Site.made(found, reading=memory.reading)
    say(f"{len(memory.drawn)} runs drawn")
    due = [e for e in site.entries if e.kind == "run" and not memory.has(site, e, out)]
    written = memory.written + sum(_write_run(site, entry, out) for entry in due)
    written += sum(_write(out, file) for path in site.paths() if (file := site.render(path)) is not None)
    every = [path for entry in site.entries for path in site.paths_of(entry)] + list(site.paths())
    stale = [out / path for path in memory.files - set(every) if (out / path).resolve().is_relative_to(out.resolve())]
    for path in stale:
        path.unlink(missing_ok=True)
    _keep(out, site, every, memory.now)
    return Made(site=site, files=len(every), written=written, removed=len(stale))


def _read_and_draw(source: ResultSource, out: Path) -> tuple[SourceReading, int]:
    """What the source holds; of a run the pages are written, under the id that it has where no other has the same."""
    reading = read(source)
    runs = [entry for entry in reading.entries if entry.kind == "run"]
    site = Site(entries=tuple(runs), groups=(), places={entry.id: source.path for entry in runs})
    return reading, sum(_write_run(site, entry, out) for entry in runs)


def _write_run(site: Site, entry: Entry, out: Path) -> int:
    """The pages of a run; how many were written."""
    return sum(_write(out, file) for file in site.run_files(entry, site.paths_of(entry)))


def _pool(count: int) -> AbstractContextManager[Executor | None]:
    """Processes, where there is enough for them to do."""
    workers = min(len(os.sched_getaffinity(0)), 8)
    if count < _MANY or workers < 2:
        return nullcontext()
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def shown(made: Made, out: Path) -> Shown:
    counts: dict[str, int] = {}
    for entry in made.site.entries:
        counts[entry.status] = counts.get(entry.status, 0) + 1
    start = out / "index.html"
    told = {"site": str(start), "results": len(made.site.entries), "status": counts, "files": made.files,
            "written": made.written, "removed": made.removed}  # fmt: skip
    lines = [f"{len(made.site.entries)} results, {made.files} files ({made.written} written)", str(start)]
    return Shown(object=told, drawn=lines)


def _write(out: Path, file: File) -> bool:
    """Whole or not at all; whether it was not there as it is."""
    path = out / file.path
    if path.is_file() and path.stat().st_size == len(file.data) and path.read_bytes() == file.data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(file.data)
    part.replace(path)
    return True


def made_by() -> str:
    """The version, with a digest of what draws pages: those of another are made anew."""
    found = hashlib.sha256()
    for text in _texts(files("tilewright.report")):
        found.update(text)
    return f"{VERSION} {found.hexdigest()[:12]}"


def _texts(folder: Traversable) -> Iterator[bytes]:
    for item in sorted(folder.iterdir(), key=lambda i: i.name):
        if item.is_dir():
            yield from _texts(item)
        elif item.name.endswith((".jinja", ".css", ".js", ".py")):
            yield item.read_bytes()


def _remembered(path: Path) -> Memory:
    """Nothing where there is no site, or one of another version."""
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != _FORMAT or found["made_by"] != made_by():
            return Memory(files=frozenset(map(str, found["files"])))
        readings = {str(k): _reading(v) for k, v in found["readings"].items()}
        return Memory(readings=readings, files=frozenset(map(str, found["files"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Memory()


def _reading(plain: dict[str, Any]) -> SourceReading:
    names = {f.name for f in fields(Entry)}
    made: list[dict[str, Any]] = [{k: v for k, v in e.items() if k in names} for e in plain["entries"]]
    entries = tuple(Entry(**{**one, "judged": tuple(one["judged"])}) for one in made)
    group = plain["group"]
    return SourceReading(
        entries=entries, group=Group(place=group["place"], head=tuple((n, t) for n, t in group["head"]))
    )


def _keep(out: Path, site: Site, every: Sequence[str], readings: dict[str, SourceReading]) -> None:
    """The site for programs: its results with their addresses, and what the next call need not read again."""
    results = [
        {"id": e.id, "status": e.status, "place": e.place, "page": e.href, "said": e.said} | _plain(e)
        for e in site.entries
    ]  # fmt: skip
    whole = {"format": _FORMAT, "made_by": made_by(), "results": results, "files": sorted(every),
             "readings": {k: asdict(v) for k, v in readings.items()}}  # fmt: skip
    text = json.dumps(whole, separators=(",", ":")).replace("},{", "},\n{")
    _write(out, File(path=INDEX, kind="application/json", data=text.encode(errors="backslashreplace")))


def _plain(entry: Entry) -> dict[str, Any]:
    names = ("problem", "strategy", "device", "mode", "ratio", "times_ns", "floor_share")
    return {name: entry.task[name] for name in names}
