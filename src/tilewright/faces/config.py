"""Settings: the one place that reads the environment."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..facts.errors import UserError
from ..facts.run import Limits

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


_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kM]?)\s*(tokens?|calls?|usd)")


def budget(text: str, *, usual_s: float) -> tuple[float, Limits]:
    """`30m,5usd,2Mtokens,40calls,device:20m`, in any order: seconds for the search (`usual_s` where none are named),
    and the other limits; UserError on anything else, and on a kind that is named twice."""
    found: dict[str, float] = {}
    for part in (p.strip() for p in text.split(",") if text):
        counted = _COUNT.fullmatch(part[1:] + "usd" if part.startswith("$") else part)
        if counted:
            kind = counted[3].rstrip("s")
            value = float(counted[1]) * {"": 1.0, "k": 1e3, "M": 1e6}[counted[2]]
        else:
            kind = "device" if part.startswith("device:") else "time"
            try:
                value = seconds(part.removeprefix("device:"))
            except UserError:
                raise UserError(
                    f"--budget: {part!r} is none; write 30m, 5usd, 2Mtokens, 40calls or device:20m, or several"
                ) from None
        if kind in found or value == 0:
            raise UserError(f"--budget: {part!r} " + ("is the second of its kind" if value else "allows nothing"))
        found[kind] = value
    limits = Limits(
        usd=found.get("usd"), device_s=found.get("device"),
        tokens=int(found["token"]) if "token" in found else None, calls=int(found["call"]) if "call" in found else None,
    )  # fmt: skip
    return found.get("time", usual_s), limits


def numbers(text: str) -> frozenset[int]:
    """`1,5,19-31` as the set of those numbers; UserError on anything else."""
    found: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not ends or int(ends[2] or ends[1]) < int(ends[1]):
            raise UserError(f"{part!r}: not a number or a range; write --only 1,5,19-31")
        found |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return frozenset(found)
