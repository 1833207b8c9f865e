"""What compilers say while a candidate builds itself on a CPU, and its machine code: seen from within its own confined
process, by compilers that stand before the real ones on its PATH."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..edges.sandbox.under import run_under
from ..facts.outcome import Failure
from .build.build import lay_out
from .sanitize import SanitizerJob

_COMPILERS = ("g++", "c++", "gcc", "cc")
_LIMIT_S = 120.0
_MOST_REMARKS, _MOST_LOOP = 40, 60  # lines
_MOST_BYTES = 4 << 20  # of a listing
_MOST_END = 1500  # letters of either end of what is said
# $1 and so on are the compiler's; what it writes is disassembled in here, since nothing outside should open that.
_SCRIPT = """#!/bin/sh
seen="{seen}/$$"
"{real}" -fopt-info-vec-optimized-missed="$seen.remarks" "$@"
code=$?
out=""
before=""
for one in "$@"; do
  [ "$before" = "-o" ] && out="$one"
  before="$one"
done
case "$out" in
  *.so) command -v objdump > /dev/null && objdump -d -C --no-show-raw-insn "$out" > "$seen.asm" 2> /dev/null ;;
esac
exit $code
"""
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
_SKIPPED = re.compile(r"@plt|^_(init|fini|start)|^(de)?register_tm_clones|^frame_dummy|^__do_global")
_KINDS = (
    ("vectors of 64 bytes", re.compile(r"%zmm")), ("vectors of 32 bytes", re.compile(r"%ymm")),
    ("calls", re.compile(r"^call")), ("gathers", re.compile(r"^v?p?gather")),
    ("scalar floating point", re.compile(r"^v?\w+s[sd]\b.*%xmm")), ("vectors of 16 bytes", re.compile(r"%xmm")),
    ("branches", re.compile(r"^j")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSeen:
    """`finished`: it was built and ran to its end. `said`: what it printed last; `remarks`: the compiler's, of its own
    files; `code`: lines on its machine code."""

    finished: bool
    said: str
    remarks: tuple[str, ...]
    code: tuple[str, ...]


def on_a_cpu(job: SanitizerJob) -> CodeSeen | Failure:
    """Build and run it once."""
    refused = lay_out(job.candidate, job.folder / "candidate")
    if refused is not None:
        return refused
    stand_ins, seen = job.folder / "compilers", job.folder / "seen"
    stand_ins.mkdir()
    seen.mkdir()
    for name in _COMPILERS:
        if real := shutil.which(name):
            script = stand_ins / name
            script.write_text(_SCRIPT.format(real=real, seen=seen))
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
    variables = {"PATH": f"{stand_ins}:{os.environ.get('PATH', '')}"}
    if (stand_ins / "g++").exists():
        variables["CXX"] = str(stand_ins / "g++")
    ran = run_under((), job.folder, setup=replace(job, device="cpu").setup, limit_s=_LIMIT_S, variables=variables)
    left = _left_in(seen)
    remarks = [line for name, text in left if name.endswith(".remarks") for line in _own_remarks(text, job.folder)]
    listing = "\n".join(text for name, text in left if name.endswith(".asm"))
    said = ran.text.replace(f"{job.folder}/candidate/", "").strip()
    return CodeSeen(
        finished=ran.finished, said="" if ran.finished else _ends(said) or "it printed nothing",
        remarks=tuple(dict.fromkeys(remarks))[:_MOST_REMARKS], code=tuple(told_of(listing)),
    )  # fmt: skip


def _ends(text: str) -> str:
    """What compilers complain of stands at its beginning, what was raised at its end."""
    return text if len(text) <= 2 * _MOST_END else f"{text[:_MOST_END]}\n[...]\n{text[-_MOST_END:]}"


def _left_in(folder: Path) -> list[tuple[str, str]]:
    """Names and texts of plain files that the candidate's process left there. It may have put anything in their place:
    what is a link, or has another name elsewhere, would show its author files that are not its own."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        return [(name, text) for name in sorted(os.listdir(place)) if (text := _text(name, place)) is not None]
    finally:
        os.close(place)


def _text(name: str, place: int) -> str | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        what = os.fstat(descriptor)
        plain = stat.S_ISREG(what.st_mode) and what.st_nlink == 1
        return file.read(_MOST_BYTES).decode(errors="replace") if plain else None


def _own_remarks(text: str, folder: Path) -> Iterator[str]:
    """Of the candidate's files and not of system headers, those of loops first."""
    lines = [line.replace(f"{folder}/candidate/", "") for line in text.splitlines()]
    own = [line for line in lines if not line.startswith("/") and re.match(r"\S+:\d+:\d+: ", line)]
    own += [line.split("/")[-1] for line in lines if line.startswith(str(folder))]
    yield from (line for line in own if "optimized:" in line)
    yield from (line for line in own if "couldn't vectorize loop" in line)
    yield from (line for line in own if "not vectorized:" in line)


def told_of(listing: str) -> Iterator[str]:
    """The functions with the most instructions, each by kind, and the longest loop of the first: jumps that go back
    enclose one."""
    found = {n: lines for n, lines in _functions(listing).items() if not _SKIPPED.search(n) and len(lines) > 8}
    if not found:
        yield "no machine code was seen: nothing was compiled to a library here, or objdump is not installed"
        return
    ranked = sorted(found, key=lambda name: -len(found[name]))
    for name in ranked[:5]:
        kinds = Counter(_kind(text) for _, text in found[name])
        told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        yield f"{name[:120]}: {len(found[name])} instructions: {told}"
    loop = max((_loop(found[name]) for name in ranked[:5]), key=len)
    yield f"its longest innermost loop ({len(loop)} instructions):" if loop else "no loop was seen"
    yield from (f"  {text}" for text in loop[:_MOST_LOOP])


def _functions(listing: str) -> dict[str, list[tuple[int, str]]]:
    """By name, the instructions with their addresses."""
    found: dict[str, list[tuple[int, str]]] = {}
    here: list[tuple[int, str]] = []
    for line in listing.splitlines():
        if title := _FUNCTION.match(line):
            here = found.setdefault(title[1], [])
        elif instruction := _LINE.match(line):
            here.append((int(instruction[1], 16), f"{instruction[2]} {instruction[3]}".strip()))
    return found


def _loop(lines: list[tuple[int, str]]) -> list[str]:
    """The longest loop that holds no other, by jumps backwards."""
    loops = []
    for number, (address, text) in enumerate(lines):
        jump = re.match(r"j\w+\s+([0-9a-f]+)\b", text)
        if jump and int(jump[1], 16) <= address:
            first = next((n for n, (a, _) in enumerate(lines) if a >= int(jump[1], 16)), number)
            loops.append((first, number))
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (c, d) != (a, b) for c, d in loops)]
    first, last = max(inner, key=lambda span: span[1] - span[0], default=(0, -1))
    return [text for _, text in lines[first : last + 1]]


def _kind(text: str) -> str:
    return next((name for name, pattern in _KINDS if pattern.search(text)), "integers and moves")
