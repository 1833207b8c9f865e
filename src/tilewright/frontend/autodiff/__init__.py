"""Reverse-mode differentiation of graphs: from what a module computes to what its gradients take, node by node."""

from .attended import AttentionNodes
from .depthwise import with_depthwise
from .segments import segments

__all__ = ["AttentionNodes", "segments", "with_depthwise"]
