"""The site of folders that change, for a server: each page as it is when it is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .entries import SourceReading, read
from .folders import ResultSource, sources
from .pages import File, Site


class LiveSite:
    """`render` gives a file of the site, or None; it may be called from several threads. What lies in the folders is
    looked at again where the last look is older than `patience_s`; only what changed since is read."""

    def __init__(
        self, folders: Sequence[Path], *, patience_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folders = tuple(folders)
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: dict[object, SourceReading] = {}
        self._site: Site | None = None
        self._looked_s = 0.0

    def render(self, path: str) -> File | None:
        """The file at this path from the root of the site, "" being its start; None where there is none. UserError for
        a folder that is not there."""
        return self.site().render(path or "index.html")

    def site(self) -> Site:
        """As it was at the last look."""
        with self._lock:
            now_s = self._clock()
            if self._site is None or now_s - self._looked_s >= self._patience_s:
                self._site, self._looked_s = self._look(), now_s
            return self._site

    def _look(self) -> Site:
        seen: dict[object, SourceReading] = {}

        def reading(source: ResultSource) -> SourceReading:
            key = (source, source.states())
            seen[key] = self._readings[key] if key in self._readings else read(source)
            return seen[key]

        site = Site.made(sources(self._folders), reading=reading)
        self._readings = seen
        return site
