"""From a file to a Problem: read and checked without running it."""

from .environment import environment_read
from .read import read_problem
from .task import is_task

__all__ = ["environment_read", "read_problem", "is_task"]
