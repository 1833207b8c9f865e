"""The site: which pages there are, and each of them made when it is asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Template

from ...facts.move import Event
from ...facts.run import SearchContext
from .. import chart, drawing, plot
from ..attribution import NOT_MEASURED
from ..curves import curve
from ..page import environment
from ..story import story
from .board import PASSES, choices, has_result, label, natural, rows, standings, totals
from .candidates import judged, of_the_module
from .dialogue import turns
from .entries import Entry, Group, SourceReading, journal, read, slug
from .folders import ResultSource, sources

HTML, CSS, JS = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8"
ASSETS = {"assets/site.css": CSS, "assets/filter.js": JS}
_RUN_PAGE = re.compile(r"runs/([^/]+)/(index|candidates|dialogue|candidate-([0-9]{1,9}))\.html")
# What would steer a terminal, or turn the order in which letters are read: shown, not obeyed.
_SHOWN: dict[int, str] = {n: chr(0x2400 + n) for n in range(32) if n not in (9, 10, 13)} | {0x7F: "␡"}
_SHOWN |= {n: f"⟨U+{n:04X}⟩" for n in (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}

_STEERS = re.compile(f"[{re.escape(''.join(map(chr, _SHOWN)))}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of the site: its path from the root, its media type, its bytes."""

    path: str
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What lies in some folders, to be looked at with a browser. Every page is made by `render`, when asked for."""

    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]
    places: Mapping[str, Path]  # the folders of runs, by the ids of their entries
    ignored: int = 0  # JSON files that hold no judged result

    @classmethod
    def of(cls, folders: Sequence[Path]) -> Site:
        """What lies in these folders now. UserError for one that is not there."""
        return cls.made(sources(folders))

    @classmethod
    def made(
        cls, given: Sequence[ResultSource], *, reading: Callable[[ResultSource], SourceReading] = read
    ) -> Site:  # fmt: skip
        """Of these sources. `reading`: what one of them holds, from memory where that is known."""
        found = [(source, reading(source)) for source in given]
        heads = {r.group.place: r.group for _, r in found if r.group.head}
        pairs = _apart([(entry, source) for source, r in found for entry in r.entries])
        groups = {entry.group: heads.get(entry.group, Group(place=entry.group)) for entry, _ in pairs}
        return cls(
            entries=tuple(entry for entry, _ in pairs),
            groups=tuple(groups[place] for place in sorted(groups, key=natural)),
            places={entry.id: source.path for entry, source in pairs if entry.kind == "run"},
            ignored=sum(not r.entries for _, r in found),
        )  # fmt: skip

    def paths(self) -> tuple[str, ...]:
        """Of all files but those of single runs, the start page first."""
        return ("index.html", "runs.html", *ASSETS, *(f"groups/{slug(g.place)}.html" for g in self.groups))

    def paths_of(self, entry: Entry) -> tuple[str, ...]:
        """Of the files of a run; () where the entry is none."""
        if entry.kind != "run":
            return ()
        pages = [
            "index",
            "candidates",
            *(["dialogue"] if entry.turns else []),
            *(f"candidate-{n}" for n in entry.judged),
        ]
        return tuple(f"runs/{entry.id}/{page}.html" for page in pages)

    def render(self, path: str) -> File | None:
        """The file at this path; None where there is none."""
        if path in ASSETS:
            return File(path=path, kind=ASSETS[path], data=_asset(path).encode())
        if found := _RUN_PAGE.fullmatch(path):
            entry = next((e for e in self.entries if e.kind == "run" and e.id == found[1]), None)
            return next(self.run_files(entry, (path,)), None) if entry and path in self.paths_of(entry) else None
        if path == "index.html":
            return self._page("index", path, rows=standings(self.entries), totals=totals(self.entries))
        if path == "runs.html":
            return self._page("runs", path, rows=rows(self.entries), totals=())
        group = next((g for g in self.groups if path == f"groups/{slug(g.place)}.html"), None)
        if group is None:
            return None
        inside = [e for e in self.entries if e.group == group.place]
        return self._page("group", path, rows=rows(inside), totals=totals(inside), group=group)

    def run_files(self, entry: Entry, paths: Sequence[str]) -> Iterator[File]:
        """The files of a run at these of its paths, its journal read once. Nothing where it is gone by now."""
        pages = {path: path.rpartition("/")[2].removesuffix(".html") for path in paths}
        try:
            found = journal(self.places[entry.id])
            told = self._run_pages(entry, *found, wanted=set(pages.values())) if found else {}
        except Exception as error:  # foreign bytes: what can't be drawn says so, and spoils no other page
            why = f"{type(error).__name__}: {error}"
            told = {page: self._page("broken", path, entry=entry, why=why[:500]) for path, page in pages.items()}
        yield from (replace(told[page], path=path) for path, page in pages.items() if page in told)

    def _run_pages(
        self, entry: Entry, context: SearchContext, events: tuple[Event, ...], *, wanted: set[str]
    ) -> dict[str, File]:
        made: dict[str, File] = {}
        if "index" in wanted:
            made["index"] = self._report(entry, context, events)
        if "dialogue" in wanted:
            made["dialogue"] = self._page(
                "dialogue", f"runs/{entry.id}/dialogue.html", entry=entry, turns=turns(events)
            )
        if wanted - {"index", "dialogue"}:
            found = tuple(judged(context, events, folder=self.places[entry.id]))
            module = of_the_module(events)
            made["candidates"] = self._page(
                "candidates", f"runs/{entry.id}/candidates.html", entry=entry, judged=found, module=module
            )
            for one in found:
                name = f"candidate-{one.attempt.seq}"
                if name in wanted:
                    made[name] = self._page(
                        "candidate", f"runs/{entry.id}/{name}.html", entry=entry, one=one, **_drawing()
                    )
        return made

    def _report(self, entry: Entry, context: SearchContext, events: tuple[Event, ...]) -> File:
        return self._page(
            "report", f"runs/{entry.id}/index.html", entry=entry, story=story(context, events),
            search=plot.run_plot(curve(context, events)), **_drawing(),
            use=f'import tilewright\nModel = tilewright.load("{entry.place}")',
        )  # fmt: skip

    def _page(self, name: str, path: str, **values: Any) -> File:
        given = {
            "site": self, "root": "../" * path.count("/"), "here": path, "label": label, "slug": slug, "passes": PASSES,
            "choices": choices, "has_result": has_result, **values,
        }  # fmt: skip
        text = _template(name).render(given)
        text = text.translate(_SHOWN) if _STEERS.search(text) else text
        return File(path=path, kind=HTML, data=text.encode(errors="backslashreplace"))


def _drawing() -> dict[str, Any]:
    return {"geometry": chart, "boxes": drawing, "plot": plot, "unmeasured": NOT_MEASURED}


def _apart(found: Sequence[tuple[Entry, ResultSource]]) -> list[tuple[Entry, ResultSource]]:
    """Ids that differ, where several entries have the same: the later of them are numbered."""
    seen: Counter[tuple[str, str]] = Counter()
    apart = []
    for entry, source in found:
        where = ("" if entry.kind == "run" else entry.group, entry.id)
        seen[where] += 1
        apart.append((replace(entry, id=f"{entry.id}.{seen[where]}") if seen[where] > 1 else entry, source))
    return apart


@cache
def _template(name: str) -> Template:
    return environment().get_template(f"site/{name}.html.jinja")


@cache
def _asset(path: str) -> str:
    name = path.rpartition("/")[2]
    if path.endswith(".css"):
        return environment().get_template("report.css").render() + environment().get_template(f"site/{name}").render()
    return files("tilewright.report.site").joinpath(name).read_text(encoding="utf-8")
