"""Models: every provider behind one call, replies from files and cassettes, and what each reply cost."""

from .model import Keys, Model
from .named import open_model

__all__ = ["Keys", "Model", "open_model"]
