"""The journal of a run: one SQLite file, append-only events, large texts once under their digest."""

from .journal import Ledger

__all__ = ["Ledger"]
