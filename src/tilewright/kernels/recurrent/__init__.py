"""Recurrent layers on any target: their shape, and the layers one after another."""
