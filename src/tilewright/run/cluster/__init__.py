"""Campaigns on several machines: one small interface for engines, and what a node does with a task."""
