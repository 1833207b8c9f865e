"""A file as prompts show it: without long runs of lines that a composed candidate has to check signatures by."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LONG = 400  # characters of such lines in a row, from which on they are left out
_TABLE = re.compile(r"^_(?:STATES|JUDGED) = \($")
_CONDITION = re.compile(r"^\s+(?:and )?[\w.\[\]()]+.*(?:\bis\b|==|isinstance|\.shape|\.dtype|\.device|\.stride)")


def abridged(text: str) -> str:
    """What is left stands as it does in the file, so that edits can be anchored in it; of each run that is left out a
    comment tells."""
    if "_tilewright_" not in text:  # not composed by us: whatever it is, it is what shall be changed
        return text
    made: list[str] = []
    for run, checks in _runs(text.split("\n")):
        if checks and sum(map(len, run)) > _LONG:
            indent = run[0][: len(run[0]) - len(run[0].lstrip())]
            run = [f"{indent}# [{len(run)} lines of signature checks are not shown here; they stay as they are]"]
        made += run
    return "\n".join(made)


def _runs(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Neighbouring lines together, and whether they check signatures."""
    run: list[str] = []
    inside = checks = False
    for line in lines:
        ends_table = inside and line.startswith(")")
        inside = (inside and not ends_table) or bool(_TABLE.match(line))
        condition = line.lstrip().startswith("and ") and bool(_CONDITION.match(line))
        of_checks = condition or (inside and not _TABLE.match(line))
        if run and of_checks != checks:
            yield run, checks
            run = []
        run.append(line)
        checks = of_checks
    if run:
        yield run, checks
