"""From a file to a Problem: read and checked without running it."""

from .read import read_problem
from .task import is_task

__all__ = ["read_problem", "is_task"]
