"""The problems that the server offers by name: the files under its roots, as they lay there when it started."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...edges.problems import is_task
from ...facts.errors import UserError
from ...facts.ticket import Submission

_MOST = 100_000
_PARTS = ("func_forward.py", "func_backward.py", "config_forward.json", "config_backward.json")


class ProblemRoots:
    """Names are paths in a root, without `.py`; with several roots, the root's own name comes first. A name is looked
    up, never made into a path. Raises UserError where two are equal, or a root is no folder."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._places: dict[str, Path] = {}
        for root in roots:
            if not root.is_dir():
                raise UserError(f"--root {root}: no such folder")
            for path in _problems(root.resolve()):
                inside = path.relative_to(root.resolve()).with_suffix("")
                name = str(Path(root.resolve().name, inside) if len(roots) > 1 else inside)
                if self._places.setdefault(name, path) != path:
                    raise UserError(f"--root {root}: problem {name!r} is in another root, too")
                if len(self._places) > _MOST:
                    raise UserError(f"--root {root}: more than {_MOST} problems")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._places))

    def version(self, name: str) -> str:
        """A digest of the problem's files as they are now; KeyError where there is none of this name."""
        path, found = self._places[name], hashlib.sha256()
        for file in (path,) if not path.is_dir() else (path / part for part in _PARTS):
            try:
                found.update(file.read_bytes() + b"\0")
            except FileNotFoundError:
                found.update(b"\1")
        return found.hexdigest()[:32]

    def path_of(self, submission: Submission) -> str:
        """Where the problem lies, "" where its text was sent; KeyError where it is not as it was submitted."""
        if submission.source:
            return ""
        if self.version(submission.problem) != submission.version:
            raise KeyError(submission.problem)
        return str(self._places[submission.problem])


def _problems(root: Path) -> Iterator[Path]:
    """Task folders and Python files below; nothing that is a link."""
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(root).parts)
        if hidden or path.is_symlink() or is_task(path.parent):
            continue
        if is_task(path) if path.is_dir() else path.suffix == ".py":
            yield path
