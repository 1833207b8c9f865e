"""The operation that a Program is, where it is one into which nothing is fused."""

from __future__ import annotations

from .program import AttentionBackwardOp, AttentionOp, Program
from .recurrence import RecurrenceOp


def attention_in(program: Program) -> AttentionOp | None:
    """The attention that a Program is, if it is one."""
    return next((item for item in program.body if isinstance(item, AttentionOp)), None)


def attention_backward_in(program: Program) -> AttentionBackwardOp | None:
    """The gradients of an attention that a Program is, if it is one."""
    return next((item for item in program.body if isinstance(item, AttentionBackwardOp)), None)


def recurrence_in(program: Program) -> RecurrenceOp | None:
    """The recurrent layers that a Program is, if it is such."""
    return next((item for item in program.body if isinstance(item, RecurrenceOp)), None)
