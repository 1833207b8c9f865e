"""From a file to a Problem: read and checked without running it."""

from .read import read_problem

__all__ = ["read_problem"]
