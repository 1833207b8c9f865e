"""What a model expects of a kernel before it is judged: a chance to fail for each verifier."""

from __future__ import annotations

import re

from ...facts.verdict import VERIFIERS

_UNKNOWN = 0.5


def read_risks(text: str) -> dict[str, float]:
    """By verifier, of lines such as `NUMERICS: 0.2, sums in half`; percentages are understood. What is missing or out
    of 0 .. 1 is left out."""
    found: dict[str, float] = {}
    for name in VERIFIERS:
        line = re.search(
            rf"^[\s*#-]*{name}[\s*]*:[\s*]*(\d+(?:\.\d+)?)\s*(%?)", text, flags=re.MULTILINE | re.IGNORECASE
        )
        if line is not None and (value := float(line[1]) / (100 if line[2] else 1)) <= 1:
            found[name] = value
    return found


def read_risk(text: str) -> float:
    """The chance that it fails for any of them, as if they were independent."""
    risks = read_risks(text)
    if not risks:
        return _UNKNOWN
    right = 1.0
    for risk in risks.values():
        right *= 1 - risk
    return 1 - right
