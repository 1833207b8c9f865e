"""Retrieve: what is known of patterns and of how to realise them, found by words; it comes with the package."""

from .documents import packaged
from .index import Index
from .rules import rules

__all__ = ["Index", "packaged", "rules"]
