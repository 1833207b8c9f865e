"""What a tensor looks like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What a tensor looks like: dtype as in facts.program, shape and strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
