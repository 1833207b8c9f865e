"""From source files to a module imported in a cell."""

from .given import candidate_of
from .load import load_candidate

__all__ = ["candidate_of", "load_candidate"]
