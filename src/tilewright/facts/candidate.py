"""A Candidate: source files and an entry point, known by a digest over what changes its behaviour."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

MAX_FILE_BYTES = 8 << 20
MAX_FILES = 500
_MOST_NAME = 120  # bytes of a folder's or a file's name: what is put behind it must fit, too
_MOST_PATH = 600
LIBRARY = "library"  # the language of a candidate that is a call of a library's, written by nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of a candidate: its path relative to the candidate's folder, with forward slashes, and its text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Frozen source. `entry` is the file that defines `ModelNew` (KernelBench's convention)."""

    files: tuple[SourceFile, ...]
    entry: str = "model.py"
    language: str = "python"

    @property
    def by(self) -> Literal["library", "model"]:
        """Who made it."""
        return "library" if self.language == LIBRARY else "model"

    @property
    def id(self) -> str:
        """Hex digest over paths, texts, entry and language; equal for equal behaviour-determining content."""
        digest = hashlib.sha256(f"{self.entry}\0{self.language}\0".encode())
        for file in sorted(self.files, key=lambda f: f.path):
            digest.update(f"{file.path}\0{len(file.text)}\0{file.text}\0".encode())
        return digest.hexdigest()[:16]


def fault_in(texts: Mapping[str, str]) -> str:
    """Why files of these paths and texts can't be written to a folder, "" where they can: whoever names them may be a
    model, or a client of ours."""
    if len(texts) > MAX_FILES:
        return f"{len(texts)} files; a candidate has at most {MAX_FILES}"
    folders = {str(parent) for path in texts for parent in PurePosixPath(path).parents}
    for path, text in texts.items():
        place = PurePosixPath(path)
        fits = len(path) <= _MOST_PATH and all(len(part.encode(errors="replace")) <= _MOST_NAME for part in place.parts)
        if place.is_absolute() or ".." in place.parts or not place.name or not path.isprintable() or not fits:
            return f"{path[:80]!r}: name files by their paths in the candidate's folder, as in 'model.py'"
        if str(place) in folders:
            return f"{path!r}: is both a file and a folder of files"
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return f"{path!r}: holds halves of letters (surrogates), which no text file can"
        if size > MAX_FILE_BYTES:
            return f"{path!r} is too long: a candidate's files are source, {MAX_FILE_BYTES} bytes at most"
    return ""
