"""Propose: makes candidates out of Programs."""
