"""What earlier runs have learnt on this machine: a folder with one file for each run, found again by words.

Like winners, lessons hold for a device with a toolchain, and expire with them; a file that can't be read counts as not
there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tilewright.facts import codec
from tilewright.facts.document import Document
from tilewright.facts.lesson import Lesson
from tilewright.facts.machine import Machine
from tilewright.facts.winner import toolchain

from .index import Index

FOLDER = "lessons"  # in the cache
MOST = 6  # shown to a model
_MOST_FILES = 400  # the newest count


def remember(folder: Path, run: str, lessons: Sequence[Lesson]) -> str:
    """Keep what a run has learnt in the place of what it had learnt before. Returns "" or why it could not be kept."""
    path = folder / f"{run}.json"
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(codec.dumps(tuple(lessons)), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        return f"what the run has learnt was not kept: {path}: {error}"
    return ""


def entries(folder: Path, machine: Machine, *, tilewright: str) -> tuple[Lesson, ...]:
    """Those that hold for this machine with this toolchain, the newest run's first."""
    now = toolchain(machine, tilewright=tilewright)
    files = sorted(folder.glob("*.json"), key=_age, reverse=True)[:_MOST_FILES] if folder.is_dir() else []
    found = [lesson for path in files for lesson in _read(path)]
    return tuple(x for x in found if (x.target, x.device, x.toolchain) == (machine.target, machine.device, now))


def recall(lessons: Sequence[Lesson], words: str, *, category: str, but: str = "") -> tuple[str, ...]:
    """Lines for a prompt: of this category those that hold the most of the words, the best first, each text once. What
    problem `but` taught is left out: to repeat it measures nothing but memory."""
    of_kind = [x for x in lessons if x.category == category and x.problem != but]
    documents = [
        Document(kind="lesson", name=str(n), title=x.text, text=x.shape_class, operations=(x.category,))
        for n, x in enumerate(of_kind)
    ]  # fmt: skip
    hits = Index(documents).search(f"{words} {category}", most=MOST) if documents else ()
    return tuple(dict.fromkeys(of_kind[int(hit.document.name)].line for hit in hits))


def _age(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _read(path: Path) -> tuple[Lesson, ...]:
    with suppress(OSError, UnicodeDecodeError, ValueError):
        return codec.read(path.read_text(encoding="utf-8"), tuple[Lesson, ...])
    return ()
