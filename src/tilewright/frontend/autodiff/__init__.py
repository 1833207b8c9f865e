"""Reverse-mode differentiation of graphs: from what a module computes to what its gradients take, node by node."""

from .segments import segments

__all__ = ["segments"]
