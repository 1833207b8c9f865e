"""Whether a call leaves work on streams that its own does not wait for.

The driver tells, where a call is recorded as a graph: work of a stream that was made to wait for ours and never joined
it again ends the recording with an error of its own. Timed calls find such work where it is still at it when the clock
stops; this finds it where it happened to be done by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..memory import driver
from .load import said_by

_UNJOINED = "unjoined work"  # cudaErrorStreamCaptureUnjoined
_Graph: Any = torch.cuda.CUDAGraph
_Stream: Any = torch.cuda.Stream
_entered = torch.cuda.stream


def leaves_streams(call: Callable[[], Any]) -> bool:
    """False, too, where the call can't be recorded. Nothing that is recorded runs: the process is good for nothing
    else afterwards."""
    driver.synchronize()
    graph = _Graph()
    try:
        with _entered(_Stream()):
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                call()
            finally:
                graph.capture_end()
    except Exception as error:  # whatever the code under test, or the driver, says of being recorded
        return _UNJOINED in said_by(error)
    return False
