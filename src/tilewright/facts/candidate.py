"""A Candidate: source files and an entry point, known by a digest over what changes its behaviour."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

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
