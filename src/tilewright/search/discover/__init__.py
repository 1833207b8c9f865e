"""Discover: from measured calls and matched patterns to the parts of a module, in the order of what they can win."""

from .parts import Rules, call_floors, owners, parts

__all__ = ["Rules", "call_floors", "owners", "parts"]
