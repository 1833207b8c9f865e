"""Whose code a call spends its time in."""
