"""What a cell does beside calls and their times: a call under the profiler, its memory, and calls that are recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..memory import driver
from ..wire import calls as wire
from . import profile
from .arenas import MappedArenas
from .graphed import RecordedGraph
from .load import blaming, said_by
from .subject import CandidateSubject
from .timing import Timer


class Looks:
    """Answers these requests on one subject."""

    __slots__ = ("_anew", "_arenas", "_recorded", "_subject", "_timer")  # no method can be hidden in an instance

    def __init__(
        self, subject: CandidateSubject, arenas: MappedArenas, timer: Timer, anew: Callable[[], None]
    ) -> None:  # fmt: skip
        self._subject, self._arenas, self._timer, self._anew = subject, arenas, timer, anew
        self._recorded: RecordedGraph | None = None

    def forget(self) -> None:
        """Let what was recorded go."""
        self._recorded = None

    def _call(self, request: Any) -> Callable[[], Any]:
        ready = self._subject.bound(request.args, self._arenas.read(request.inputs))
        return lambda: (self._anew(), ready()())[1]

    def peak(self, request: wire.Peak) -> wire.PeakBytes:
        call = self._call(request)
        if self._subject.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with blaming("raised", "forward raised"), self._subject.grad_mode():
            call()
        if self._subject.device != "cuda":
            return wire.PeakBytes(allocated=0)
        driver.synchronize()
        return wire.PeakBytes(allocated=int(torch.cuda.max_memory_allocated()))

    def profile(self, request: wire.Profile) -> wire.Profiled:
        call = self._call(request)
        with blaming("raised", "forward raised under the profiler"), self._subject.grad_mode():
            seen = profile.spent(self._subject.device, call, launches=request.launches)
        if self._subject.device != "cuda":
            return wire.Profiled(spent=seen)
        return wire.Profiled(spent=seen, launches=len(seen), launch_ns=profile.launch_ns())

    def capture(self, request: wire.CaptureRequest) -> wire.CaptureReply:
        call = self._call(request)
        with self._subject.grad_mode():
            return wire.CaptureReply(leaves_streams=leaves_streams(call))

    def record_graph(self, request: wire.RecordGraph) -> None:
        call = self._call(request)
        with self._subject.grad_mode(), blaming("raised", "forward raised"):
            self._recorded = RecordedGraph(call)

    def replay_graph(self, request: wire.ReplayGraph) -> wire.GraphReplayed:
        if self._recorded is None:
            raise RuntimeError("no call was recorded")
        with blaming("raised", "a replayed CUDA graph failed"):
            ns = self._recorded.replayed(request.times, evict=partial(self._timer.evict, request.flush_bytes, None))
        tree, outputs = self._subject.held.take(0, self._recorded.seen, self._arenas.read(request.inputs))
        return wire.GraphReplayed(ns=ns, outputs_tree=tree, outputs=outputs)


# ---- Whether a call leaves work on streams that its own does not wait for. The driver tells, where a call is recorded
# as a graph: work of a stream that was made to wait for ours and never joined it again ends the recording with an error
# of its own. Timed calls find such work where it is still at it when the clock stops; this finds it where it happened
# to be done by then.

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
