"""The journal of a run: one SQLite file, append-only events, large texts once under their digest."""

from .journal import Ledger
from .store import make_folder

__all__ = ["Ledger", "make_folder"]
