"""A file as prompts show it: without what a composed candidate has around its computation, which no edit is for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_LONG = 400  # characters of such lines in a row, from which on they are left out
_TABLE = re.compile(r"^_(?:STATES|JUDGED) = \($")
_CONDITION = re.compile(
    r"^\s+and (?:[\w.\[\]()]+.*(?:\bis\b|==|isinstance|\.shape|\.dtype|\.device|\.stride)"
    r"|(?:not )?(?:isinstance\(|[\w.\[\]]+\.is_\w+$))"
)
_FRAME = re.compile(r"_tilewright_|_original$|guard$|configure$")  # functions of a composed module's frame
_MOST_BODY, _ENDS = 120, (60, 20)  # lines of a case's code; of a longer one, those shown at its beginning and its end
_CHECKS, _GUARDS, _CALLS = "signature checks", "guards and fallback", "calls like those above"


def abridged(text: str) -> str:
    """What is left stands as it does in the file, so that edits can be anchored in it; of each run that is left out a
    comment tells."""
    if "_tilewright_" not in text:  # not composed by us: whatever it is, it is what shall be changed
        return text
    lines = text.split("\n")
    kinds = _left_out(text) if "def _tilewright_fall_back" in text else {}
    made: list[str] = []
    for run, kind in _runs(lines, kinds):
        if kind and sum(map(len, run)) > _LONG:
            indent = run[0][: len(run[0]) - len(run[0].lstrip())]
            run = [f"{indent}# [{len(run)} lines of {kind} are not shown here; they stay as they are]"]
        made += run
    return "\n".join(made)


def _left_out(text: str) -> dict[int, str]:
    """Of a composed module's lines, counted from 0, those that no edit is for, by what they are."""
    found: dict[int, str] = {}
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a model edited it
        return found
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        last = node.end_lineno or node.lineno
        if _FRAME.match(node.name):
            found |= dict.fromkeys(range(first, last), _GUARDS)
        elif node.name.startswith("_case_") and last - first > _MOST_BODY:
            found |= dict.fromkeys(range(first + _ENDS[0], last - _ENDS[1]), _CALLS)
    return found


def _runs(lines: list[str], kinds: dict[int, str]) -> Iterator[tuple[list[str], str]]:
    """Neighbouring lines together, with what they are where that may be left out; empty lines go with those before."""
    run: list[str] = []
    inside, kind = False, ""
    for number, line in enumerate(lines):
        ends_table = inside and line.startswith(")")
        inside = (inside and not ends_table) or bool(_TABLE.match(line))
        condition = bool(_CONDITION.match(line))
        of_checks = condition or (inside and not _TABLE.match(line))
        new = kinds.get(number, _CHECKS if of_checks else kind if not line and kind == _GUARDS else "")
        if run and new != kind:
            yield run, kind
            run = []
        kind = new
        run.append(line)
    if run:
        yield run, kind
