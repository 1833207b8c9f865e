"""Reverse-mode differentiation of graphs: from what a module computes to what its gradients take, node by node."""

from .attended import AttentionNodes
from .segments import segments

__all__ = ["AttentionNodes", "segments"]
