"""Many runs as pages for a browser: a leaderboard, each run's report, its candidates, and its dialogue with a model."""

from .entries import Entry
from .folders import ResultSource, sources
from .live import LiveSite
from .pages import File, Site

__all__ = ["Entry", "File", "LiveSite", "Site", "ResultSource", "sources"]
