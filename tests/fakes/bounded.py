"""Functions with a time limit, for tests of kernels that may hang."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


class Bounded:
    """Runs functions in a process of its own, which is killed where one takes too long: a kernel that hangs would take
    the test run with it."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[..., T], *args: Any, limit_s: float = 60.0) -> T:
        self._pool = self._pool or ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        try:
            return self._pool.submit(function, *args).result(limit_s)
        except (TimeoutError, BrokenProcessPool):
            for process in list(self._pool._processes.values()):
                process.kill()
            self._pool = None
            raise
