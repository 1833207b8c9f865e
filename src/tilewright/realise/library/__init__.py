"""Calls of libraries that realise parts of a graph. Another package's object of the shape of Library, registered as an
entry point of the group `tilewright.realisers`, competes with ours."""

from tilewright.facts.device import Device

from ..realiser import Refused
from .protocol import Library, LibraryMatch

__all__ = ["Device", "Library", "LibraryMatch", "Refused"]
