"""Gradients of attention on Hopper: scores are made again from their factors, by wgmma."""
