"""What compute-sanitizer's report says, and of whose kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...facts.outcome import Failure
from .origins import OWN, origin

_MARK = "========="
_EXCERPT = 3500
# "at rows(float *, int)+0x50 in rows.cu:7", and before CUDA 12: "at 0x50 in rows.cu:7:rows(float *, int)"
_AT = re.compile(r"\bat (?!0x)(?P<name>.+?)\+0x[0-9a-f]+")
_AT_OLD = re.compile(r"\bat 0x[0-9a-f]+ in (?:[^\s:]+:\d+:)?(?P<name>.+)$")
_HEAD = re.compile(
    r"^(?P<fatal>Invalid|Misaligned|Out-of-range|Barrier error|Error: (Race|Potential)|Stack overflow|Illegal)"
    r"|^Warning: (Race|Potential)"
)
_FAILED = re.compile(r"Device not supported|Target application terminated before|Unable to|Failed to|not supported")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One error (`fatal`) or warning: what, in which kernel ("" where it does not say), and the report's own lines."""

    what: str
    kernel: str
    fatal: bool
    text: str

    @property
    def own(self) -> bool:
        return origin(self.kernel, "cuda") == OWN


def reports(text: str) -> tuple[Report, ...]:
    """The errors and warnings in what a tool printed; what the program under it printed is not looked at."""
    return tuple(_report(block) for block in _blocks(text))


def failure(tool: str, found: tuple[Report, ...]) -> Failure | None:
    """The candidate's fault, where an error is reported in a kernel of its own."""
    fatal = [r for r in found if r.fatal and r.own]
    if not fatal:
        return None
    first = fatal[0]
    more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
    return Failure(
        stage="check", reason="sanitizer", summary=f"{tool}: {first.what} in {first.kernel or 'a kernel'}{more}"[:500],
        excerpt="\n".join(r.text for r in fatal)[:_EXCERPT],
    )  # fmt: skip


def remarks(tool: str, found: tuple[Report, ...]) -> tuple[str, ...]:
    """What is worth a note and no refusal: warnings, and errors in kernels of libraries."""
    said = []
    for report in found:
        if not (report.fatal and report.own):
            whose = "" if report.own else f" ({origin(report.kernel, 'cuda')}'s)"
            said.append(f"{tool}: {report.what} in {report.kernel[:80] or 'a kernel'}{whose}")
    return tuple(dict.fromkeys(said))[:5]


def why_not(text: str) -> str:
    """Why a tool did not get to the end, in its own words where it has some, else the last that the program printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line.removeprefix(_MARK).strip() for line in lines if line.startswith(_MARK)]
    others = [line for line in lines if not line.startswith(_MARK)]
    said = [line for line in own if _FAILED.search(line)] or others[-1:] or ["it printed nothing"]
    return said[0][:300]


def _blocks(text: str) -> Iterator[list[str]]:
    """Runs of the tool's lines that begin with a head; an empty one ends a block."""
    block: list[str] = []
    for line in text.splitlines():
        said = line.removeprefix(_MARK).strip() if line.startswith(_MARK) else None
        if said and _HEAD.match(said):
            if block:
                yield block
            block = [said]
        elif said and block:
            block.append(said)
        elif said == "" and block:
            yield block
            block = []
    if block:
        yield block


def _report(block: list[str]) -> Report:
    head = _HEAD.match(block[0])
    assert head is not None
    where = (_AT.search(line) or _AT_OLD.search(line) for line in block)
    found = next((m for m in where if m), None)
    kernel = found["name"].strip() if found else ""
    what = re.sub(r"\s+at .*", "", block[0].removeprefix("Error: ").removeprefix("Warning: "))
    return Report(what=what, kernel=kernel, fatal=bool(head["fatal"]), text="\n".join(block))
