"""A call that is recorded as a CUDA graph and replayed: whoever fills its inputs anew gets new results of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..memory import driver
from .load import CodeRaised, said_by
from .timing import Seen

_Graph: Any = torch.cuda.CUDAGraph
_Stream: Any = torch.cuda.Stream
_entered = torch.cuda.stream
_CALLS_BEFORE = 2  # what is planned, built or chosen at the first call is no part of a graph


class RecordedGraph:
    """See the module's docstring. Raises CodeRaised("not_capturable") where the call can't be recorded."""

    __slots__ = ("_events", "_graph", "seen")

    def __init__(self, call: Callable[[], Any]) -> None:
        for _ in range(_CALLS_BEFORE):
            call()
        driver.synchronize()
        self._events = driver.Events(2)
        self._graph = _Graph()
        try:
            with _entered(_Stream()):
                self._graph.capture_begin(capture_error_mode="thread_local")
                try:
                    result = call()
                finally:
                    self._graph.capture_end()
        except Exception as error:  # whatever the code under test, or the driver, says of being recorded
            raise CodeRaised("not_capturable", f"it can't be recorded as a CUDA graph: {said_by(error)}") from error
        self.seen = Seen.of(result)

    def replayed(self, times: int, *, evict: Callable[[], object]) -> tuple[float, ...]:
        """What each replay took, ns."""
        found = []
        for _ in range(times):
            evict()
            self._events.record(0)
            self._graph.replay()
            self._events.record(1)
            driver.synchronize()
            found.append(self._events.elapsed_ns(0, 1))
        return tuple(found)
