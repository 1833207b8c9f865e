"""Calls of libraries that realise parts of a graph. Another package's object of the shape of Library, registered as an
entry point of the group `tilewright.realisers`, competes with ours."""

from .protocol import Device, Library, Match, Refused

__all__ = ["Device", "Library", "Match", "Refused"]
