"""Campaigns on a simulated cluster of Ray, parts of which are killed."""
