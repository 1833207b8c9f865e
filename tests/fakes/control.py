"""Loops and branches as Python has them, in place of those that `kernels.cuda.control` writes for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def loop(lo: int, hi: int, body: Callable[[int], Any]) -> None:
    for i in range(lo, hi):
        body(i)


def when(condition: object, body: Callable[[], Any]) -> None:
    if condition:
        body()
