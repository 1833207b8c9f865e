"""Knobs that a candidate exposes in its text: `TILE = 64  # knob: 32, 64, 128`; turned without a model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...facts.candidate import Candidate, SourceFile

_VALUE = r"[\w.+-]+"
_KNOB = re.compile(
    rf"^(?P<before>[^\n]*?\b(?P<name>\w+)\s*[=:]?[=\s]\s*)(?P<value>{_VALUE})(?P<after>\s*;?\s*(?:#|//)\s*knob:\s*"
    rf"(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)[^\n]*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKnob:
    """One knob: where it stands, what it is, what it may be beside that."""

    path: str
    name: str
    value: str
    others: tuple[str, ...]


def knobs_of(candidate: Candidate) -> tuple[TextKnob, ...]:
    """In the order of the files; those with a single value are none."""
    found = []
    for file in candidate.files:
        for match in _KNOB.finditer(file.text):
            others = tuple(dict.fromkeys(v.strip() for v in match["values"].split(",")))
            others = tuple(v for v in others if v != match["value"])
            if others:
                found.append(TextKnob(path=file.path, name=match["name"], value=match["value"], others=others))
    return tuple(found)


def turned(candidate: Candidate, knob: TextKnob, value: str) -> Candidate:
    """The candidate with this knob at another value, and nothing else changed."""

    def put(match: re.Match[str]) -> str:
        return match["before"] + value + match["after"] if match["name"] == knob.name else match[0]

    files = tuple(
        SourceFile(path=f.path, text=_KNOB.sub(put, f.text)) if f.path == knob.path else f for f in candidate.files
    )
    return replace(candidate, files=files)
