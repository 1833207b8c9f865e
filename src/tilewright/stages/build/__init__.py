"""From source files to a module imported in a cell."""

from .load import load_candidate

__all__ = ["load_candidate"]
