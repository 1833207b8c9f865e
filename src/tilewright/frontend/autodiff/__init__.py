"""Reverse-mode differentiation of graphs: from what a module computes to what its gradients take, node by node."""

from .attended import Attended
from .segments import segments

__all__ = ["Attended", "segments"]
