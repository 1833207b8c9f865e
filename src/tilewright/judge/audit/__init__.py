"""Whether a score on a task means anything: results got with less work, and the rules that judge their figures."""

from .rules import findings

__all__ = ["findings"]
