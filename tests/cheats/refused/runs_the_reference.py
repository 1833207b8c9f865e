# problem: norm
# line: resubmits, reference-found
# refused: does_not_load
# guards: walls
"""Reads the problem's file, whose folder it knows, and hands the reference in as its own work."""

from pathlib import Path

# The command that this process was started with names a file of the judge's.
_STARTED = Path("/proc/self/cmdline").read_text().split("\0")
_START = next(Path(word) for word in _STARTED if word.endswith("/tilewright/judge/candidate_process/start.py"))
_ROOT = next(folder for folder in _START.parents if (folder / "tests/cheats/problems").is_dir())
_FOUND = {"__name__": "reference"}
exec((_ROOT / "tests/cheats/problems/norm.py").read_text(), _FOUND)


class ModelNew(_FOUND["Model"]):
    pass
