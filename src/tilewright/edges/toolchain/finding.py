"""A SanitizerFinding: one thing that was looked for on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitizerFinding:
    """`ok` is False for a lack; `advice` then says in one line what it costs and how to end it."""

    name: str
    value: str
    ok: bool = True
    advice: str = ""
