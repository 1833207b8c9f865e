"""What a model's reply changes in a candidate: search/replace blocks anchored in text, or whole files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from ...facts.candidate import Candidate, SourceFile, fault_in

_NAME = r"[\w./-]+\.(?:py|cpp|cc|h|cu|cuh|hpp|ptx)"
# A name on a line of its own, perhaps in a heading or in backquotes: "### `model.py`", "FILE: model.py".
_NAMED = re.compile(rf"^[#*\s>]*(?:(?:file|path)\s*:)?[\s*`]*({_NAME})[\s*`:]*$", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\n`]*)$")
_SEARCH = re.compile(r"^<{5,9} ?SEARCH\b.*$")
_MIDDLE = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^>{5,9} ?(?:REPLACE|UPDATED)?\b.*$")
_OUTSIDE = re.compile(r"^(?:[./]|.*\.\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """`candidate` of None: the reply changes nothing that can be applied, for the `problem` given."""

    candidate: Candidate | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swap:
    path: str
    old: str
    new: str


def edited(candidate: Candidate | None, reply: str) -> Edited:
    """The candidate after the reply's edits, all of them or none. Without a candidate the reply must hold whole
    files, among them the one with `ModelNew`. Trailing white space doesn't count in a search; anything else does."""
    swaps, wholes, fault = _parsed(reply.replace("\r\n", "\n"))
    if fault:
        return Edited(candidate=None, problem=fault)
    files = {f.path: f.text for f in candidate.files} if candidate else {}
    entry = candidate.entry if candidate else "model.py"
    for path, text in wholes:
        target = path or (entry if "class ModelNew" in text else "")
        if target and not _OUTSIDE.match(target):
            files[target] = text
    for swap in swaps:
        path = swap.path or _only_place(files, swap.old) or entry
        if path not in files:
            return Edited(candidate=None, problem=f"there is no file {path}; there are {', '.join(sorted(files))}")
        found, problem = _swapped(files[path], swap)
        if problem:
            return Edited(candidate=None, problem=f"in {path}: {problem}")
        files[path] = found
    if fault := fault_in(files):
        return Edited(candidate=None, problem=fault)
    made = Candidate(files=tuple(SourceFile(path=p, text=t) for p, t in sorted(files.items())), entry=entry)
    if candidate is not None and {(f.path, f.text) for f in candidate.files} == set(files.items()):
        changed = bool(swaps or any(path or "class ModelNew" in text for path, text in wholes))
        told = "the edits leave every file as it was" if changed else "the reply holds no edit and no whole file"
        return Edited(candidate=None, problem=told)
    if entry not in files or "ModelNew" not in files[entry]:
        return Edited(candidate=None, problem=f"no file {entry} with a class ModelNew came of it")
    return Edited(candidate=made)


def _parsed(reply: str) -> tuple[list[_Swap], list[tuple[str, str]], str]:
    """Blocks in the order of the reply: swaps, and fenced whole files with the names before them or in their fence."""
    swaps: list[_Swap] = []
    wholes: list[tuple[str, str]] = []
    lines = reply.split("\n")
    name, index, around = "", 0, ""  # `around`: the fence that a swap stands in
    while index < len(lines):
        line = lines[index]
        fence = _FENCE.match(line)
        if around and line.strip() == around:
            around = ""
        elif named := _NAMED.match(line):
            name = named[1]
        elif _SEARCH.match(line):
            swap, index = _swap(lines, index, name)
            if swap is None:
                return [], [], "a SEARCH block has no ======= or no >>>>>>> REPLACE line after it"
            swaps.append(swap)
        elif fence:
            end = next((i for i in range(index + 1, len(lines)) if lines[i].strip() == fence[1]), None)
            body = lines[index + 1 : end]
            inside = re.search(_NAME, fence[2])
            name = inside[0] if inside else name
            if not any(_SEARCH.match(text) for text in body):
                if end is None:
                    return [], [], f"the file that begins in line {index + 1} of the reply has no end: it was cut off"
                wholes.append((name, "\n".join(body) + "\n"))
                name, index = "", end
            else:
                around = fence[1]
        index += 1
    return swaps, wholes, ""


def _swap(lines: list[str], start: int, name: str) -> tuple[_Swap | None, int]:
    middle = next((i for i in range(start + 1, len(lines)) if _MIDDLE.match(lines[i])), None)
    end = next((i for i in range((middle or start) + 1, len(lines)) if _REPLACE.match(lines[i])), None)
    if middle is None or end is None:
        return None, start
    old, new = "\n".join(lines[start + 1 : middle]), "\n".join(lines[middle + 1 : end])
    return _Swap(path=name, old=old, new=new), end


def _only_place(files: dict[str, str], old: str) -> str:
    places = [path for path, text in files.items() if _places(text, old)]
    return places[0] if len(places) == 1 else ""


def _swapped(text: str, swap: _Swap) -> tuple[str, str]:
    """The text after the swap, or why it can't be made."""
    if not swap.old.strip():
        return "", "a SEARCH block is empty; give lines to anchor the change, or the whole file"
    places = _places(text, swap.old)
    if len(places) > 1:
        at = ", ".join(str(p + 1) for p in places)
        return "", f"the SEARCH text stands {len(places)} times (lines {at}); add lines until it is unique:\n{swap.old}"
    if not places:
        return "", f"no such SEARCH text:\n{swap.old}\nthe nearest there is:\n{_nearest(text, swap.old)}"
    lines, length = text.split("\n"), len(_trimmed(swap.old))
    new = swap.new.split("\n") if swap.new else []
    return "\n".join([*lines[: places[0]], *new, *lines[places[0] + length :]]), ""


def _trimmed(block: str) -> list[str]:
    return [line.rstrip() for line in block.split("\n")]


def _places(text: str, block: str) -> list[int]:
    """Numbers of the lines at which the block begins, white space at the ends of lines aside."""
    lines, wanted = _trimmed(text), _trimmed(block)
    return [i for i in range(len(lines) - len(wanted) + 1) if lines[i : i + len(wanted)] == wanted]


def _nearest(text: str, block: str) -> str:
    lines, wanted = text.split("\n"), block.split("\n")
    if not lines:
        return "(an empty file)"
    target = "\n".join(wanted)

    def likeness(start: int) -> float:
        return SequenceMatcher(
            None, "\n".join(lines[start : start + len(wanted)]), target, autojunk=False
        ).quick_ratio()

    best = max(range(max(len(lines) - len(wanted) + 1, 1)), key=likeness)
    return "\n".join(lines[best : best + len(wanted)])
