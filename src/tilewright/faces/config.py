"""Settings: the one place that reads the environment."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..facts.errors import UserError

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def cache_dir() -> Path:
    """What is shared between runs on this machine: measured rates, tuned winners, builds."""
    named = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilewright"


def commit() -> str:
    """The commit of a copy that is no checkout, as its maker names it; "" where nobody did."""
    return os.environ.get("TILEWRIGHT_COMMIT", "")


def key(names: tuple[str, ...]) -> str | None:
    """A provider's key: the first of these variables that is set, else what the keyring keeps for the service
    `tilewright` under the first of these names, where there is a keyring."""
    for name in names:
        if value := os.environ.get(name):
            return value
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        kept: str | None = keyring.get_password("tilewright", names[0])
    except KeyringError:
        return None
    return kept


def seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1.5h` in seconds; UserError on anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not found or float(found[1]) == 0:
        raise UserError(f"{text!r}: not a duration; write 90s, 5m or 1h")
    return float(found[1]) * _UNITS_S[found[2]]


def numbers(text: str) -> frozenset[int]:
    """`1,5,19-31` as the set of those numbers; UserError on anything else."""
    found: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not ends or int(ends[2] or ends[1]) < int(ends[1]):
            raise UserError(f"{part!r}: not a number or a range; write --only 1,5,19-31")
        found |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return frozenset(found)
